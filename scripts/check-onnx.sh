#!/usr/bin/env bash
# Checks generated models with the ONNX project's own checker, weights and all:
# those in the given directory, or small ones of every kind made for it.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=build/venv-onnx
if ! cmp -s scripts/requirements-onnx.txt "$venv/requirements.txt"; then
  python3 -m venv --clear "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r scripts/requirements-onnx.txt
  cp scripts/requirements-onnx.txt "$venv/requirements.txt"
fi
dir=${1:-}
if [ -z "$dir" ]; then
  dir=build/check-onnx
  rm -rf "$dir"
  go run ./cmd/muster models generate all --scale small --out "$dir"
fi
"$venv/bin/python" scripts/check-onnx.py "$dir"
