#!/usr/bin/env bash
# k8s.sh build: builds a Kubernetes cluster's programs from their Go modules (etcd, kube-apiserver,
# kube-controller-manager, kube-scheduler, kubelet, kube-proxy and kwok, which plays nodes), as one, into
# $MUSTER_K8S_CACHE (default: ~/.cache/muster-k8s), with the definitions of others' resources that the
# chart and the examples have; 25 CPU minutes, once for each version. JOBS bounds how many packages
# compile at a time.
#
# k8s.sh test [FLAG...]: runs scripts/test/k8s with them, by go test with the flags.
#
# k8s.sh node: runs the chart's pods on kubelets with Debian's containerd (scripts/test/k8s/node.py), as
# root, with the image that `make image` has made.
#
# Both say so and end well where what they need is not there.
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

# find_programs sets programs, the folder with helm and kubectl.
find_programs() {
  if [ ! -x "$at/cluster" ]; then
    echo "k8s: skipped: no cluster in $at: \`make k8s-cluster\` builds it"
    exit 0
  fi
  if ! programs=$(scripts/helm.sh); then
    echo "k8s: skipped: no helm and kubectl"
    exit 0
  fi
}

# test_nodes runs node.py in a network, mounts and processes of its own, with which all that it starts
# ends. It is not their first process, which has to wait for orphans.
test_nodes() {
  local package root packages="containerd runc containernetworking-plugins iptables libxtables12 libip4tc2
    libip6tc2 libnftnl11 libmnl0 libnetfilter-conntrack3 libnfnetlink0"
  if [ "$(id -u)" != 0 ] || ! unshare --net --mount --pid --fork true 2>/dev/null; then
    echo "k8s: skipped: no rights to make networks"
    exit 0
  fi
  for package in $packages; do
    if ! root=$(scripts/debian.sh "$package"); then
      echo "k8s: skipped: no $package"
      exit 0
    fi
  done
  local debian=${root%/*} name
  mkdir -p build/k8s-bin
  for name in ip{,6}tables{,-save,-restore}; do
    ln -sf "$debian/iptables/usr/sbin/xtables-nft-multi" "build/k8s-bin/$name"
  done
  local libraries
  libraries=$(find "$debian"/lib*/usr/lib -maxdepth 1 -mindepth 1 -type d -name '*-linux-gnu' | paste -sd:)
  local code=0
  PATH=$PWD/build/k8s-bin:$debian/containerd/usr/bin:$debian/runc/usr/sbin:$PATH \
    LD_LIBRARY_PATH=$libraries \
    XTABLES_LIBDIR=$(dirname "$(find "$debian" -name libxt_comment.so)") \
    unshare --net --mount --propagation private --pid --fork --mount-proc --kill-child \
    bash -c '"$@"; exit $?' bash python3 scripts/test/k8s/node.py --cluster "$at" --clients "$programs" \
    --moto "$(scripts/venv.sh moto)" --conformance "$(scripts/venv.sh conformance)" \
    --cni "$debian/containernetworking-plugins/usr/lib/cni" || code=$?
  find /sys/fs/cgroup -depth -type d -path '*/muster-node-*' -exec rmdir {} + 2>/dev/null || true
  return "$code"
}

case ${1:-} in
build) build ;;
test)
  find_programs
  MUSTER_K8S=$at MUSTER_K8S_CLIENTS=$programs \
    go test -trimpath -vet=off -tags fleet -count=1 -timeout 20m "${@:2}" ./scripts/test/k8s
  ;;
node)
  find_programs
  test_nodes
  ;;
*) echo "k8s: want build, test or node" >&2; exit 2 ;;
esac
