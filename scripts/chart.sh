#!/usr/bin/env bash
# chart.sh: lints the Helm chart and renders it with several values, and has muster read the fleet.yaml
# that it makes. Where helm.sh brings no helm, it says so and ends well.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."

if ! programs=$(scripts/helm.sh); then
  echo "chart: skipped: no helm"
  exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
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
  "$programs/helm" lint --strict --quiet "$chart" --values "$values" 2>"$work/errors" ||
    { cat "$work/errors" >&2; exit 1; }
  "$programs/helm" template m "$chart" --namespace muster --values "$values" \
    --api-versions monitoring.coreos.com/v1 >"$values.out" 2>"$work/errors" ||
    { cat "$work/errors" >&2; exit 1; }
  printf '%s: %d objects\n' "$(basename "$values" .yaml)" "$(grep -c '^kind:' "$values.out")"
done
# Nothing that the schema does not know.
if "$programs/helm" template m "$chart" --set 'pools[0].name=A_B' --set 'pools[0].replicas=1' \
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
