#!/usr/bin/env bash
# k8s.sh build: builds a Kubernetes cluster's programs from their Go modules (etcd, kube-apiserver,
# kube-controller-manager, kube-scheduler and kwok, which plays nodes), as one program, into
# $MUSTER_K8S_CACHE (default: ~/.cache/muster-k8s), with the definitions of others' resources that the
# chart and the examples have; 25 CPU minutes, once for each version. JOBS bounds how many packages
# compile at a time.
#
# k8s.sh test [FLAG...]: runs scripts/test/k8s with them, by go test with the flags. Where they are
# not there it says so and ends well.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."

of=scripts/test/k8s/cluster
cache=${MUSTER_K8S_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/muster-k8s}
monitoring=github.com/prometheus-operator/prometheus-operator@v0.85.0/example/prometheus-operator-crd
crds="github.com/cert-manager/cert-manager@v1.19.0/deploy/crds/cert-manager.io_certificates.yaml
github.com/kedacore/keda/v2@v2.21.0/config/crd/bases/keda.sh_scaledobjects.yaml
github.com/kserve/kserve@v0.15.2/config/crd/full/serving.kserve.io_clusterservingruntimes.yaml
$monitoring/monitoring.coreos.com_podmonitors.yaml
$monitoring/monitoring.coreos.com_prometheusrules.yaml"
key=$({ cat "$of"/{go.mod,go.sum,main.go}; echo "$crds"; go env GOVERSION; } | sha256sum | cut -c1-12)
at=$cache/cluster-$key

build() {
  if [ -x "$at/cluster" ]; then return; fi
  mkdir -p "$at/crds"
  local crd module dir
  while read -r crd; do
    module=${crd%%/config/*} module=${module%%/deploy/*} module=${module%%/example/*}
    dir=$(go mod download -json "$module" |
      python3 -c 'import json, sys; print(json.load(sys.stdin)["Dir"])')
    install -m 0644 "$dir${crd#"$module"}" "$at/crds/"
  done <<<"$crds"
  # Without a version, kubectl and helm do not know what they talk to.
  local version=k8s.io/component-base/version
  GOOS='' GOARCH='' go build -C "$of" -trimpath -p "${JOBS:-$(getconf _NPROCESSORS_ONLN)}" \
    -o "$at/new" -ldflags="-s -w
    -X $version.gitVersion=$(cd "$of" && go list -m -f '{{.Version}}' k8s.io/kubernetes)
    -X $version.gitMajor=1 -X $version.gitMinor=37" .
  mv "$at/new" "$at/cluster"
}

case ${1:-} in
build) build ;;
test)
  if [ ! -x "$at/cluster" ]; then
    echo "k8s: skipped: no cluster in $at: \`make k8s-cluster\` builds it"
    exit 0
  fi
  if ! programs=$(scripts/helm.sh); then
    echo "k8s: skipped: no helm and kubectl"
    exit 0
  fi
  MUSTER_K8S=$at MUSTER_K8S_CLIENTS=$programs \
    go test -trimpath -vet=off -tags fleet -count=1 -timeout 20m "${@:2}" ./scripts/test/k8s
  ;;
*) echo "k8s: want build or test" >&2; exit 2 ;;
esac
