#!/usr/bin/env bash
# image.sh [amd64] [arm64]: makes the container image of each architecture (default: both), as one OCI
# layout in build/image/muster, without a container engine: Debian's packages that the binary needs,
# and the binary. It needs apt-get and dpkg-deb, and for another architecture a C compiler, as
# packages.sh does. VERSION is the image's tag (default: dev). The same packages and the same
# commit give the same image.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."

[ $# -gt 0 ] || set -- amd64 arm64
images=()
for arch in "$@"; do
  cc=$(scripts/compiler.sh "$arch")
  dir=build/image/$arch
  mkdir -p "$dir"
  if [ ! -d "$dir/debs" ]; then
    rm -rf "$dir/new"
    mkdir -p "$dir"/new/{lists/partial,cache/archives/partial}
    (
      cd "$dir/new"
      # Lists of its own: those of the system may be missing, old, or of another architecture.
      options=(-qq -o APT::Sandbox::User= -o "APT::Architecture=$arch" -o "APT::Architectures=$arch"
        -o "Dir::State::Lists=$PWD/lists" -o "Dir::Cache=$PWD/cache" -o Dir::State::status=/dev/null)
      apt-get "${options[@]}" update >&2
      apt-get "${options[@]}" download libc6 libgcc-s1 gcc-12-base libstdc++6 ca-certificates \
        base-files netbase >&2
      rm -rf lists cache
    )
    mv "$dir/new" "$dir/debs"
  fi
  scripts/fetch-onnxruntime.sh "$arch"
  CC=$cc CGO_ENABLED=1 GOARCH=$arch go build -trimpath -buildvcs=auto -tags embed_onnxruntime \
    -ldflags='-s -w' -o "$dir/muster" ./cmd/muster
  images+=("$arch=$dir")
done
GOOS='' GOARCH='' go run -trimpath ./scripts/tools/image -out build/image/muster \
  -version "${VERSION:-dev}" "${images[@]}"
