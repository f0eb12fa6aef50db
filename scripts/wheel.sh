#!/usr/bin/env bash
# wheel.sh [amd64] [arm64]: makes the wheel of each architecture (default: both) in build/dist: the
# client of python/, and the binary, which pip installs on PATH. That of this machine's architecture is
# bin/muster; `make wheel` builds that first. Another one is built with the C compiler that CC_amd64 or
# CC_arm64 names (default: Debian's cross compilers), as packages.sh does it. VERSION is the version
# (default: from git's tags). The same commit gives the same wheel.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."

maxBytes=$((75 << 20))
commands=$(scripts/venv.sh wheel)

if [ -z "${VERSION:-}" ]; then
  # Without a tag: a version older than any release. PyPI takes no version with a "+".
  VERSION=$(git describe --tags --exact-match --match 'v*' 2>/dev/null ||
    echo "v0.1.0.dev$(git rev-list --count HEAD)+g$(git rev-parse --short HEAD)")
  VERSION=${VERSION#v}
fi
export WHEEL_VERSION=$VERSION
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}

[ $# -gt 0 ] || set -- amd64 arm64
mkdir -p build/dist
for arch in "$@"; do
  case $arch in
  amd64) machine=x86_64 cc=${CC_amd64:-x86_64-linux-gnu-gcc} ;;
  arm64) machine=aarch64 cc=${CC_arm64:-aarch64-linux-gnu-gcc} ;;
  *) echo "wheel: no wheel for $arch: amd64 and arm64 are known" >&2; exit 1 ;;
  esac
  scripts/fetch-onnxruntime.sh "$arch"
  dir=$PWD/build/wheel/$arch
  rm -rf "$dir"
  mkdir -p "$dir"
  if [ "$arch" = "$(go env GOHOSTARCH)" ]; then
    cp bin/muster "$dir/muster"
  else
    if ! command -v "$cc" >/dev/null; then
      echo "wheel: no C compiler $cc for $arch: install one (apt-get install gcc-${cc%-gcc})," \
        "or name one as CC_$arch, or make one wheel: make wheel ARCHS=amd64" >&2
      exit 1
    fi
    CC=$cc CGO_ENABLED=1 GOARCH=$arch go build -trimpath -buildvcs=auto \
      -tags embed_onnxruntime -ldflags='-s -w' -o "$dir/muster" ./cmd/muster
  fi
  # The newest symbols of glibc that the binary or ONNX Runtime's library needs.
  glibc=$(readelf --dyn-syms --wide "$dir/muster" build/onnxruntime/linux-"$arch"/lib*.so.* |
    grep -oE '@GLIBC_2\.[0-9]+' | sort -uV | tail -n 1)
  glibc=${glibc#@GLIBC_}
  # What is built from lies apart, for the licences lie elsewhere in the repository.
  cp -R python/src python/README.md python/pyproject.toml python/hatch_build.py LICENSE NOTICE \
    runtime/internal/ortlib/ThirdPartyNotices.txt "$dir"
  find "$dir" -name __pycache__ -prune -exec rm -rf {} +
  (
    cd "$dir"
    export WHEEL_BINARY=$dir/muster
    export WHEEL_PLATFORM=manylinux_${glibc/./_}_$machine
    "$commands/python" -m build --wheel --no-isolation --outdir ../../dist . >"$dir/log" ||
      { cat "$dir/log" >&2; exit 1; }
  )
  wheel=$(ls "build/dist/muster_serve-$VERSION"-*"_$machine.whl")
  bytes=$(stat -c %s "$wheel")
  echo "$wheel: $bytes bytes"
  if [ "$bytes" -gt $maxBytes ]; then
    echo "wheel: $wheel has $bytes bytes, want at most $maxBytes" >&2
    exit 1
  fi
  if [ "$arch" != "$(go env GOHOSTARCH)" ]; then continue; fi
  # As a user has it: installed in a new environment, asked in an empty folder.
  python3 -m venv --clear "$dir/venv"
  "$dir/venv/bin/pip" install --quiet --disable-pip-version-check "$wheel"
  mkdir "$dir/empty"
  (
    cd "$dir/empty"
    "$dir/venv/bin/muster" models generate ncf --scale small >/dev/null
    "$dir/venv/bin/python" - <<'PYTHON'
import muster, muster.testing

with muster.testing.Agent("model-repository") as agent, agent.client() as client:
    answer = client.predict("ncf", ids=[[1, 2, 3, 4]], deadline=30)
    print(f"muster {muster.__version__}: the wheel's agent answers {answer}")
PYTHON
  )
done
