#!/usr/bin/env bash
# packages.sh [amd64] [arm64]: builds the release binaries for each architecture (default: both) and
# packs them as deb and rpm into build/packages, with an SBOM of each (CycloneDX). To build for an architecture
# that is not this machine's, it needs a C compiler for that one: CC_amd64 or CC_arm64 (default:
# Debian's cross compilers). VERSION is the version of the packages (default: from git's tags), and
# SOURCE_DATE_EPOCH the time of the files in them (default: the last commit's). CUDA=1 also packs
# muster-cuda for amd64: 1.9 GiB of libraries, which it downloads if they are not there.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."

nfpm=$(scripts/tool.sh nfpm github.com/goreleaser/nfpm/v2 v2.45.0)
cyclonedx=$(scripts/tool.sh cyclonedx-gomod github.com/CycloneDX/cyclonedx-gomod v1.10.0)

if [ -z "${VERSION:-}" ]; then
  # Without a tag: a version older than any release.
  VERSION=$(git describe --tags --match 'v*' 2>/dev/null ||
    echo "v0.0.0-$(git rev-list --count HEAD)-g$(git rev-parse --short HEAD)")
  VERSION=${VERSION#v}
  VERSION=${VERSION//-/+}
fi
export VERSION
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}

out=build/packages
share=$out/share
rm -rf "$share"
mkdir -p "$share/doc"
# This program runs on this machine, also when the build is for another.
GOOS='' GOARCH='' go run -tags pages ./cmd/muster "$share"
cp NOTICE runtime/internal/ortlib/ThirdPartyNotices.txt "$share/doc"
cp CHANGELOG.md "$share/doc/changelog"
gzip -9n "$share"/man1/* "$share"/doc/*

[ $# -gt 0 ] || set -- amd64 arm64
for arch in "$@"; do
  cc=$(scripts/compiler.sh "$arch")
  scripts/fetch-onnxruntime.sh "$arch"
  mkdir -p "$out/$arch"
  CC=$cc CGO_ENABLED=1 GOARCH=$arch go build -trimpath -buildvcs=auto -tags embed_onnxruntime -ldflags='-s -w' \
    -o "$out/$arch/muster" ./cmd/muster
  CC=$cc CGO_ENABLED=1 GOARCH=$arch go build -trimpath -buildvcs=auto -ldflags='-s -w' \
    -o "$out/$arch/muster-ec2" ./cmd/muster-ec2
  for format in deb rpm; do
    GOARCH=$arch "$nfpm" package --config deploy/nfpm.yaml --packager "$format" --target "$out/"
  done
  sbom=$out/muster_${VERSION}_$arch.cdx.json
  # Licences are NOTICE's matter: -licenses would ask the network for each.
  "$cyclonedx" bin -json -std -version "v$VERSION" -output "$sbom" "$out/$arch/muster"
  "$cyclonedx" bin -json -std -version "v$VERSION" -output "$out/muster-ec2_${VERSION}_$arch.cdx.json" \
    "$out/$arch/muster-ec2"
  GOARCH='' go run ./runtime/internal/ortlib/sbom -sbom "$sbom" -libraries "build/onnxruntime/linux-$arch"
  if [ "${CUDA:-}" = 1 ] && [ "$arch" = amd64 ]; then
    scripts/fetch-onnxruntime-cuda.sh "$arch"
    for format in deb rpm; do
      GOARCH=$arch "$nfpm" package --config deploy/nfpm-cuda.yaml --packager "$format" --target "$out/"
    done
  fi
done
