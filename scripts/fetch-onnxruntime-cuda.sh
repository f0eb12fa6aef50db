#!/usr/bin/env bash
# fetch-onnxruntime-cuda.sh [amd64]: downloads the CUDA build of ONNX Runtime for Linux, and NVIDIA's
# libraries that it needs, with pip from PyPI: 1.4 GB. scripts/requirements-cuda.txt has the versions
# and the SHA-256 of each file. Files that are there already and are right are not downloaded again.
# From them it makes build/onnxruntime-cuda/linux-amd64 (1.9 GiB), which holds the libraries, and checks
# that nothing is missing in it but the driver and the system's libraries. `make onnxruntime CUDA=1`
# calls it; no other target does, except `make packages CUDA=1`.
set -euo pipefail
cd "$(dirname "$0")/.."

arch=${1:-$(go env GOARCH)}
if [ "$arch" != amd64 ]; then
	echo "fetch-onnxruntime-cuda: no CUDA build for $arch: Muster has it for amd64 only" >&2
	exit 1
fi
out=build/onnxruntime-cuda
list=scripts/requirements-cuda.txt
if cmp -s "$list" "$out/linux-$arch/requirements.txt"; then exit 0; fi

pip=
for candidate in "python3 -m pip" pip3 pip; do
	if $candidate --version >/dev/null 2>&1; then pip=$candidate; break; fi
done
if [ -z "$pip" ]; then
	echo "fetch-onnxruntime-cuda: no pip found: install it; the libraries come from PyPI" >&2
	exit 1
fi
free=$(df --output=avail -B1M build | tail -1)
if [ "$free" -lt 4000 ]; then
	echo "fetch-onnxruntime-cuda: build has $free MB free, want 4000" >&2
	exit 1
fi

echo "fetching ONNX Runtime for CUDA and NVIDIA's libraries, 1.4 GB, into $out/wheels" >&2
# The tags choose the wheels, whatever Python runs pip. pip checks each file's SHA-256.
$pip download --disable-pip-version-check --no-cache-dir --no-deps --only-binary :all: --require-hashes \
	--implementation cp --python-version 3.12 --abi cp312 --abi none \
	--platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 \
	--platform manylinux2014_x86_64 --platform manylinux2010_x86_64 \
	--dest "$out/wheels" --requirement "$list" >&2

GOOS='' GOARCH='' CGO_ENABLED=0 go run ./runtime/internal/ortlib/packcuda -wheels "$out/wheels" \
	-requirements "$list" -to "$out/linux-$arch"
