#!/usr/bin/env bash
# compiler.sh ARCH: prints the C compiler that builds for an architecture of packages and images: this
# machine's own, or CC_amd64 or CC_arm64 (default: Debian's cross compilers).
set -euo pipefail
shopt -s inherit_errexit

arch=$1
case $arch in
amd64) cc=${CC_amd64:-x86_64-linux-gnu-gcc} ;;
arm64) cc=${CC_arm64:-aarch64-linux-gnu-gcc} ;;
*) echo "compiler: nothing is built for $arch: amd64 and arm64 are known" >&2; exit 1 ;;
esac
if [ "$arch" = "$(go env GOHOSTARCH)" ]; then cc=$(GOARCH=$arch go env CC); fi
if ! command -v "$cc" >/dev/null; then
  echo "compiler: no C compiler $cc for $arch: install one (apt-get install gcc-${cc%-gcc})," \
    "name one as CC_$arch, or leave the architecture out (ARCHS=$(go env GOHOSTARCH))" >&2
  exit 1
fi
echo "$cc"
