#!/usr/bin/env bash
# Runs what is in examples/ as its README says: a fleet of the three agents of examples/systemd, and
# the clients and Prometheus's rules against it. It needs bin/muster; `make examples` builds that
# first. What this system lacks (apt-get for promtool, systemd-analyze) is said, and left out.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."

root=$PWD work=$(mktemp -d)
agents=()
stop() {
  local status=$?
  for pid in "${agents[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait
  if [ "$status" -ne 0 ]; then
    tail -n 20 "$work"/*.log >&2
  fi
  rm -rf "$work"
}
trap stop EXIT

scripts/venv.sh conformance >"$work/python" & # pip waits for the network meanwhile
venv=$!

# field NAME FILE: the field of an agent's line "muster agent" or "gossip: listening".
field() { sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p" "$2" | head -n 1; }

# until_ok SECONDS COMMAND...: waits until the command succeeds.
until_ok() {
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    if [ $SECONDS -ge $end ]; then
      echo "examples: still fails: $*" >&2
      return 1
    fi
    sleep 0.1
  done
}

echo "=== systemd: three agents"
bin/muster models generate ncf --scale small --out "$work/models" >/dev/null
sed -i 's/^deadline_ms: .*/deadline_ms: 60000/' "$work/models/ncf/model.yaml" # others compute, too
join=
for i in 1 2 3; do
  bin/muster config check "examples/systemd/agent$i.yaml"
  # The addresses are free ones; those of the files may be in use here.
  MUSTER_MODEL_DIR=$work/models MUSTER_STATE_DIR=$work/agent$i MUSTER_JOIN=$join \
    MUSTER_HTTP=127.0.0.1:0 MUSTER_GRPC=127.0.0.1:0 MUSTER_METRICS=127.0.0.1:0 \
    MUSTER_GOSSIP=127.0.0.1:0 MUSTER_LOG_FORMAT=json \
    bin/muster agent --config "examples/systemd/agent$i.yaml" 2>"$work/agent$i.log" &
  agents+=($!)
  until_ok 60 grep -q '"event":"ready"' "$work/agent$i.log"
  join=$(field advertised_addr "$work/agent1.log")
done
http=$(field http "$work/agent1.log") grpc=$(field grpc "$work/agent1.log")
fleet() { [ "$(bin/muster status --server "$grpc" 2>/dev/null | grep -c ' 1 x 1 ')" = 3 ]; }
until_ok 60 fleet
bin/muster status --server "$grpc"

if command -v systemd-analyze >/dev/null; then
  # As the README installs it, with the command where it is here.
  mkdir -p "$work/units/muster@.service.d"
  sed "s|/usr/bin/muster|$root/bin/muster|" deploy/muster.service >"$work/units/muster@.service"
  sed "s|/usr/bin/muster|$root/bin/muster|" examples/systemd/instance.conf \
    >"$work/units/muster@.service.d/instance.conf"
  cp "$work/units/muster@.service" "$work/units/muster@agent1.service"
  found=$(SYSTEMD_UNIT_PATH=$work/units: \
    systemd-analyze verify "$work/units/muster@agent1.service" 2>&1)
  if [ -n "$found" ]; then
    echo "$found" >&2
    exit 1
  fi
  echo "systemd-analyze finds no fault in the unit"
else
  echo "skipped: there is no systemd-analyze"
fi

echo "=== Go client"
if ! (cd examples/go-client &&
  GOWORK=off GOFLAGS="${GOFLAGS:-} -mod=readonly" go build -o "$work/go-client" .); then
  echo "examples: if go.mod has changed: cd examples/go-client && go mod tidy" >&2
  exit 1
fi
"$work/go-client" --servers "$grpc" --timeout 30s | tee "$work/go"
# As docs/sdk.md has it: a new module beside a clone.
mkdir "$work/myclient"
cp examples/go-client/main.go "$work/myclient"
(
  cd "$work/myclient"
  go mod init example.com/myclient
  go mod edit -replace "github.com/muster-serve/muster=$root"
  go mod tidy
  GOWORK=off go build ./...
) 2>"$work/module.log"

echo "=== Python client"
wait "$venv"
python=$(cat "$work/python")/python
PYTHONPATH=python/src "$python" examples/python-client/client.py --servers "$grpc" --timeout 30 |
  tee "$work/python"
if [ "$(sed 's/.* //' "$work/go" "$work/python" | sort -u | wc -l)" != 1 ]; then
  echo "examples: the clients were answered differently" >&2
  exit 1
fi

echo "=== Ranking"
python=$(scripts/venv.sh onnx)/python
ranking() { "$python" examples/ranking/ranking.py "$@"; }
"$python" -m pip install --quiet --disable-pip-version-check --no-index \
  -r examples/ranking/requirements.txt
ranking sample "$work/logs"
for data in ml-100k zozotown; do
  ranking load "$data" "$work/logs" "$work/ranking"
  cp -r "$work/ranking/models/$data" "$work/models"
  bin/muster models load "$data" --server "$grpc"
  bin/muster bench --server "$grpc" --from "$work/ranking/$data.jsonl" \
    --log "$work/ranking/$data.log"
  ranking score "$work/ranking/$data" --server "http://$http"
done

echo "=== Prometheus"
metrics=$(field metrics "$work/agent1.log")
curl -sf "http://$metrics/metrics" >"$work/metrics"
# Only an agent that rents machines has muster_fleet_*, one with a card muster_gpu_*, one whose models
# answer NaN muster_nonfinite_*, and one that leads where a target cannot be met muster_leader_unmet_share.
grep -v '^ *#' deploy/prometheus/muster.rules.yml | grep -oE '(^|[^:a-z_])muster_[a-z_]+' |
  grep -oE 'muster_[a-z_]+' | sed 's/_bucket$//' | grep -vE '^muster_(fleet|gpu|nonfinite|leader_unmet)_' | sort -u |
  while read -r name; do
  if ! grep -q "^# TYPE $name " "$work/metrics"; then
    echo "examples: an agent has no metric $name" >&2
    exit 1
  fi
done
if debian=$(scripts/debian.sh prometheus 2>"$work/debian.log"); then
  (cd deploy/prometheus && "$debian/usr/bin/promtool" check config prometheus.yml &&
    "$debian/usr/bin/promtool" test rules muster.test.yml)
else
  echo "skipped: no promtool, for $(tail -n 1 "$work/debian.log")"
fi
echo "examples: ok"
