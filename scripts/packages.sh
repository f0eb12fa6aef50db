#!/usr/bin/env bash
# packages.sh [amd64] [arm64]: builds the release binary for each architecture
# (default: both) and packs it as deb and rpm into build/packages. Another
# architecture than this machine's needs a C compiler for it: CC_amd64, CC_arm64
# (default: Debian's cross compilers). VERSION (default: git's) is the packages'.
set -euo pipefail
cd "$(dirname "$0")/.."

nfpm=$PWD/build/tools/nfpm-v2.45.0/nfpm
if [ ! -x "$nfpm" ]; then
  echo "installing nfpm in $(dirname "$nfpm")" >&2
  # Built by itself: its dependencies are none of this module's.
  GOFLAGS='' GOBIN=$(dirname "$nfpm") go install github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.0
fi

if [ -z "${VERSION:-}" ]; then
  # Without a tag, a version that any release is newer than.
  VERSION=$(git describe --tags --match 'v*' 2>/dev/null || echo "v0.0.0-$(git rev-list --count HEAD)-g$(git rev-parse --short HEAD)")
  VERSION=${VERSION#v}
  VERSION=${VERSION//-/+}
fi
export VERSION

out=build/packages
mkdir -p "$out"
[ $# -gt 0 ] || set -- amd64 arm64
for arch in "$@"; do
  case $arch in
  amd64) cc=${CC_amd64:-x86_64-linux-gnu-gcc} ;;
  arm64) cc=${CC_arm64:-aarch64-linux-gnu-gcc} ;;
  *) echo "packages: no packages for $arch: amd64 and arm64 are known" >&2; exit 1 ;;
  esac
  if [ "$arch" = "$(go env GOHOSTARCH)" ]; then cc=$(go env CC); fi
  if ! command -v "$cc" >/dev/null; then
    echo "packages: no C compiler $cc for $arch: install one (apt-get install gcc-${cc%-gcc}), or name one as CC_$arch" >&2
    exit 1
  fi
  scripts/fetch-onnxruntime.sh "$arch"
  mkdir -p "$out/$arch"
  CC=$cc CGO_ENABLED=1 GOARCH=$arch go build -trimpath -buildvcs=auto -tags embed_onnxruntime -ldflags='-s -w' -o "$out/$arch/muster" ./cmd/muster
  for format in deb rpm; do
    GOARCH=$arch "$nfpm" package --config deploy/nfpm.yaml --packager "$format" --target "$out/"
  done
done
