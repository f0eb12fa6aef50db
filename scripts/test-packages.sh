#!/usr/bin/env bash
# Tests the packages in build/packages. It installs the deb of this machine's architecture, starts
# the command of its systemd unit, sends a query, drains the agent and removes the deb. Then it checks
# that every package has its files (licences above all), and every deb its SBOM.
# It needs root, dpkg, setpriv, curl, go, and a machine on which muster is not installed. systemd need
# not run: this script makes the user and the directories that systemd would make. It verifies the
# unit's sandbox with systemd-analyze, but does not run the agent in it.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "test-packages: $*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || fail "not root: dpkg needs that"
if dpkg -s muster >/dev/null 2>&1; then fail "muster is installed already: remove it first"; fi
for directory in /etc/muster /var/lib/muster; do
  [ ! -e "$directory" ] || fail "$directory is there already: move it away first"
done

arch=$(dpkg --print-architecture)
debs=(build/packages/muster_*_"$arch".deb)
if [ ${#debs[@]} != 1 ] || [ ! -f "${debs[0]}" ]; then
  fail "want one deb for $arch in build/packages, found: ${debs[*]}"
fi

work=$(mktemp -d)
agent=
clean() {
  if [ -n "$agent" ]; then kill -9 "$agent" 2>/dev/null || true; fi
  dpkg --purge muster >/dev/null 2>&1 || true
  rm -rf "$work" /var/lib/muster
}
trap clean EXIT

echo "== install ${debs[0]}"
dpkg -i "${debs[0]}"
mode=$(stat -c '%U:%G %a' /etc/muster)
[ "$mode" = "root:muster-keys 750" ] || fail "/etc/muster is $mode, want root:muster-keys 750"
muster config check /etc/muster/muster.yaml

echo "== licences"
# NOTICE in the package must name every module that the binaries say they are built of.
dpkg-deb --fsys-tarfile "${debs[0]}" | tar -xO ./usr/share/doc/muster/NOTICE.gz | gunzip >"$work/NOTICE"
go version -m "$(command -v muster)" "$(command -v muster-ec2)" | awk '$1 == "dep" { print $2, $3 }' >"$work/modules"
[ "$(wc -l <"$work/modules")" -gt 20 ] || fail "$(command -v muster) names fewer than 20 modules"
while read -r module; do
  grep -Fqx "  $module" "$work/NOTICE" || fail "NOTICE.gz does not name $module"
done <"$work/modules"
muster licenses >"$work/licenses"
last=$(tail -n 1 "$work/modules")
grep -Fqx "  $last" "$work/licenses" || fail "muster licenses does not name $last, as NOTICE.gz does"

echo "== muster-ec2"
muster-ec2 --version
printf '%s\n' 'fleet: prod' 'limits: {max_price_usd_per_hour: 1, types: {t3a.small: {max: 1}}}' \
  'ec2: {region: nowhere, template: t, template_version: "1", subnets: [subnet-00000000]}' >"$work/fleet.yaml"
muster fleet check "$work/fleet.yaml" 2>"$work/check" && fail "muster fleet check finds no fault in the region nowhere"
grep -q 'ec2.region: "nowhere"' "$work/check" || { cat "$work/check" >&2; fail "muster does not ask muster-ec2"; }

unit=/usr/lib/systemd/system/muster.service
if command -v systemd-analyze >/dev/null; then
  echo "== systemd-analyze verify"
  systemd-analyze verify "$unit"
  systemd-analyze security --offline=yes "$unit" | tail -n 1
else
  echo "no systemd-analyze here: the unit is not verified" >&2
fi

echo "== what the unit starts"
setting() { sed -n "s/^$1=//p" "$unit"; }
for directory in $(setting StateDirectory); do # as systemd does
  install -d -o nobody -g nogroup "/var/lib/$directory"
done
muster models generate ncf --scale small --out /var/lib/muster/models >/dev/null
muster certs init --dir "$work/certs" >/dev/null
muster certs issue agent "$(hostname)" --dir "$work/certs" >/dev/null
muster certs issue client admin --dir "$work/certs" >/dev/null
install -m 0640 -g muster-keys "$work/certs/$(hostname).crt" /etc/muster/agent.crt
install -m 0640 -g muster-keys "$work/certs/$(hostname).key" /etc/muster/agent.key
install -m 0640 -g muster-keys "$work/certs/ca.crt" /etc/muster/ca.crt
sed -i 's/^# \(tls-\)/\1/' /etc/muster/muster.yaml
muster config check /etc/muster/muster.yaml

# shellcheck disable=SC2046 # the words of ExecStart are the command
(cd /var/lib/muster && exec setpriv --reuid nobody --regid nogroup --groups muster-keys \
  --no-new-privs --bounding-set=-all $(setting ExecStart)) 2>"$work/log" &
agent=$!
for _ in $(seq 300); do
  if curl -fs --cacert "$work/certs/ca.crt" https://localhost:8000/readyz 2>/dev/null; then
    ready=yes
    break
  fi
  kill -0 "$agent" 2>/dev/null || break
  sleep 0.1
done
[ "${ready:-}" = yes ] || { cat "$work/log" >&2; fail "the agent is not ready after 30 s, or has ended"; }
muster infer ncf --batch-size 3 --tls-ca "$work/certs/ca.crt"
muster models unload ncf --tls-ca "$work/certs/ca.crt" \
  --tls-cert "$work/certs/admin.crt" --tls-key "$work/certs/admin.key"

echo "== drain"
kill -"$(setting KillSignal)" "$agent"
wait "$agent" || { cat "$work/log" >&2; fail "exit status $? after $(setting KillSignal), want 0"; }
agent=
grep -q 'event=drained' "$work/log" || { cat "$work/log" >&2; fail "the agent's log does not say event=drained"; }

echo "== remove"
dpkg --purge muster
for left in /usr/bin/muster /usr/bin/muster-ec2 "$unit" /etc/muster/muster.yaml; do
  [ ! -e "$left" ] || fail "$left is left behind"
done
rm -rf /etc/muster # with the certificates that were put there

echo "== all packages"
# has PACKAGE ZSH-FOLDER checks the list of the package's files, which it reads from standard input.
has() {
  local files file
  files=$(cat)
  for file in bin/muster bin/muster-ec2 lib/systemd/system/muster.service \
    share/doc/muster/{copyright,LICENSE,NOTICE.gz,ThirdPartyNotices.txt.gz,changelog.gz} \
    share/man/man1/{muster,muster-agent,muster-models-generate}.1.gz \
    share/bash-completion/completions/muster \
    share/fish/vendor_completions.d/muster.fish "share/zsh/$2/_muster"; do
    grep -Fqx "/usr/$file" <<<"$files" || fail "$1 has no /usr/$file"
  done
}
for package in build/packages/muster_*.deb; do
  dpkg-deb --fsys-tarfile "$package" | tar -t | sed 's/^\.//' | has "$package" vendor-completions
  echo "$package: $(dpkg-deb --field "$package" Package Version Architecture | tr '\n' ' ')"
  sbom=${package%.deb}.cdx.json
  for component in onnxruntime google.golang.org/grpc std; do
    grep -Fq "\"name\": \"$component\"" "$sbom" || fail "$sbom has no $component"
  done
done
for package in build/packages/muster-[0-9]*.rpm; do
  if ! command -v rpm >/dev/null; then
    echo "no rpm here: the files of $package are not checked" >&2
    continue
  fi
  rpm -qlp "$package" | has "$package" site-functions
  echo "$package: $(rpm -qp --qf '%{name} %{version} %{arch}' "$package")"
done
echo "test-packages: all well"
