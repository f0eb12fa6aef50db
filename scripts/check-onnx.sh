#!/usr/bin/env bash
# Checks generated models with the ONNX project's own checker, weights and all:
# those in the given directory, or small ones of every kind made for it. `make check-onnx` builds
# bin/muster and calls it.
set -euo pipefail
cd "$(dirname "$0")/.."

commands=$(scripts/venv.sh onnx)
dir=${1:-}
if [ -z "$dir" ]; then
  dir=build/check-onnx
  rm -rf "$dir"
  bin/muster models generate all --scale small --out "$dir"
fi
"$commands/python" scripts/check-onnx.py "$dir"
