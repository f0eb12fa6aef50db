#!/usr/bin/env bash
# Checks with other people's clients, unmodified, that an agent speaks the Open
# Inference Protocol: tritonclient, grpcurl and curl, and ONNX Runtime in Python
# for the outputs. Serves the models of the given directory, or small ones of every
# kind made for it. `make conformance` builds bin/muster and calls it.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=build/venv-conformance
if ! cmp -s scripts/requirements-conformance.txt "$venv/requirements.txt"; then
  echo "installing tritonclient and ONNX Runtime for Python in $venv" >&2
  python3 -m venv --clear "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r scripts/requirements-conformance.txt
  cp scripts/requirements-conformance.txt "$venv/requirements.txt"
fi

grpcurl=$PWD/build/tools/grpcurl-v1.9.4/grpcurl
if [ ! -x "$grpcurl" ]; then
  echo "installing grpcurl in $(dirname "$grpcurl")" >&2
  GOBIN=$(dirname "$grpcurl") go install github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.4
fi

work=build/conformance
rm -rf "$work"
mkdir -p "$work/models"
if [ $# -gt 0 ]; then
  cp -R "$1/." "$work/models"
else
  bin/muster models generate all --scale small --out "$work/models" >/dev/null
fi
ORT_DISABLE_TELEMETRY=1 "$venv/bin/python" scripts/conformance.py --muster bin/muster --grpcurl "$grpcurl" --work "$work"
