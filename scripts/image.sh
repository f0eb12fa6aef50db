#!/usr/bin/env bash
# image.sh [amd64] [arm64]: makes the container image of each architecture (default: both), as one OCI
# layout in build/image/muster, without a container engine: Debian's packages that the binary needs,
# and the binary. It needs apt-get and dpkg-deb, and for another architecture a C compiler, as
# packages.sh does. VERSION is the image's tag (default: dev). The same packages and the same
# commit give the same image. CUDA=1 also makes build/image/muster-cuda for amd64, with 1.9 GiB of
# libraries, which it downloads if they are not there.
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
        base-files netbase zlib1g >&2
      rm -rf lists cache
    )
    mv "$dir/new" "$dir/debs"
  fi
  scripts/fetch-onnxruntime.sh "$arch"
  CC=$cc CGO_ENABLED=1 GOARCH=$arch go build -trimpath -buildvcs=auto -tags embed_onnxruntime \
    -ldflags='-s -w' -o "$dir/muster" ./cmd/muster
  sed -n 's/^version=/onnxruntime==/p' scripts/fetch-onnxruntime.sh >"$dir/wheels.txt"
  images+=("$arch=$dir")
  if [ "${CUDA:-}" = 1 ] && [ "$arch" = amd64 ]; then
    scripts/fetch-onnxruntime-cuda.sh "$arch"
    mkdir -p "$dir-cuda"
    ln -sfn "../$arch/debs" "$dir-cuda/debs"
    ln -f "$dir/muster" "$dir-cuda/muster"
    ln -sfn "../../onnxruntime-cuda/linux-$arch" "$dir-cuda/cuda"
    cat "$dir/wheels.txt" scripts/requirements-cuda.txt >"$dir-cuda/wheels.txt"
    cuda="$arch=$dir-cuda"
  fi
done
make=(env GOOS= GOARCH= go run -trimpath ./scripts/tools/image -version "${VERSION:-dev}")
"${make[@]}" -out build/image/muster "${images[@]}"
if [ -n "${cuda:-}" ]; then "${make[@]}" -out build/image/muster-cuda "$cuda"; fi
