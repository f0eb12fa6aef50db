#!/usr/bin/env bash
# fetch-onnxruntime.sh [amd64|arm64]: downloads ONNX Runtime's CPU library for Linux and an architecture
# (default: the one that Go builds for), checks its SHA-256, and writes it to where builds and tests
# look for it:
#   build/onnxruntime/linux-ARCH/libonnxruntime.so.VERSION            the library
#   runtime/internal/ortlib/libonnxruntime-VERSION-linux-ARCH.so.zst  compressed, to be embedded
# If both files exist, it does nothing. It uses pip (PyPI) if that is installed, else npm;
# ONNXRUNTIME_CLIENT=pip or npm chooses.
set -euo pipefail
cd "$(dirname "$0")/.."

version=1.30.0
arch=${1:-$(go env GOARCH)}
library=build/onnxruntime/linux-$arch/libonnxruntime.so.$version
packed=runtime/internal/ortlib/libonnxruntime-$version-linux-$arch.so.zst
if [ -f "$library" ] && [ -f "$packed" ]; then exit 0; fi

case $arch in
amd64) machine=x86_64 ;;
arm64) machine=aarch64 ;;
*) echo "fetch-onnxruntime: no ONNX Runtime library for GOARCH $arch, want amd64 or arm64" >&2; exit 1 ;;
esac

pip=
for candidate in "python3 -m pip" pip3 pip; do
	if $candidate --version >/dev/null 2>&1; then pip=$candidate; break; fi
done
client=${ONNXRUNTIME_CLIENT:-}
if [ -z "$client" ]; then
	if [ -n "$pip" ]; then client=pip
	elif command -v npm >/dev/null; then client=npm
	else
		echo "fetch-onnxruntime: neither pip nor npm found: install one, or build without the library" \
			"(go build ./cmd/muster) and name one at run time (--onnxruntime-lib)" >&2
		exit 1
	fi
fi

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
echo "fetching ONNX Runtime $version for linux/$arch with $client" >&2
case $client in
pip)
	# The tags choose the wheel, whatever Python runs pip. The wheels of all Python versions have the
	# same library.
	${pip:-pip} download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
		--implementation cp --python-version 3.12 --abi cp312 \
		--platform "manylinux_2_28_$machine" --platform "manylinux_2_27_$machine" \
		--dest "$tmp" "onnxruntime==$version" >&2
	;;
npm)
	(cd "$tmp" && npm pack --silent "onnxruntime-node@$version" >/dev/null)
	;;
*) echo "fetch-onnxruntime: ONNXRUNTIME_CLIENT is $client: want pip or npm" >&2; exit 1 ;;
esac

archive=$(find "$tmp" -name '*.whl' -o -name '*.tgz')
# The packer runs on this machine, also when the build is for another.
GOOS=$(go env GOHOSTOS) GOARCH=$(go env GOHOSTARCH) CGO_ENABLED=0 go run ./runtime/internal/ortlib/pack \
	-archive "$archive" -arch "$arch" -library "$library" -packed "$packed"
