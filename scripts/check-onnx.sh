#!/usr/bin/env bash
# check-onnx.sh [DIRECTORY]: checks the models in a directory, with their weights, with the ONNX
# project's own checker. Without a directory it generates a small model of every kind and checks
# those. It needs bin/muster; `make check-onnx` builds that first.
set -euo pipefail
cd "$(dirname "$0")/.."

commands=$(scripts/venv.sh onnx)
dir=${1:-}
if [ -z "$dir" ]; then
  dir=build/check-onnx
  rm -rf "$dir"
  bin/muster models generate all --scale small --out "$dir"
fi
"$commands/python" scripts/test/onnx/check.py "$dir"
