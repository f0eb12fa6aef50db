#!/usr/bin/env bash
# Checks with other people's clients, unmodified, that an agent speaks the Open
# Inference Protocol: tritonclient, grpcurl and curl, and ONNX Runtime in Python
# for the outputs. Serves the models of the given directory, or small ones of every
# kind made for it. `make conformance` builds bin/muster and calls it.
set -euo pipefail
cd "$(dirname "$0")/.."

commands=$(scripts/venv.sh conformance)
grpcurl=$(scripts/tool.sh grpcurl github.com/fullstorydev/grpcurl v1.9.4)

work=build/conformance
rm -rf "$work"
mkdir -p "$work/models"
if [ $# -gt 0 ]; then
  cp -R "$1/." "$work/models"
else
  bin/muster models generate all --scale small --out "$work/models" >/dev/null
  # What is right is looked at, and not how fast: this machine may have much else to do.
  sed -i 's/^deadline_ms: .*/deadline_ms: 60000/' "$work"/models/*/model.yaml
fi
ORT_DISABLE_TELEMETRY=1 "$commands/python" scripts/conformance.py --muster bin/muster \
  --grpcurl "$grpcurl" --work "$work"
