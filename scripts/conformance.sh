#!/usr/bin/env bash
# conformance.sh [DIRECTORY]: checks that an agent speaks the Open Inference Protocol, with clients of
# others: tritonclient, grpcurl and curl. The outputs are compared with those of ONNX Runtime in
# Python. The agent serves the models in the directory, or a small one of every kind; another one then serves
# a Triton model repository. It needs bin/muster; `make conformance` builds that first.
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
export ORT_DISABLE_TELEMETRY=1
here=scripts/test/conformance
"$commands/python" $here/conformance.py --muster bin/muster --grpcurl "$grpcurl" --work "$work"
# A Triton model repository, and all that Triton's clients may ask.
timeout 300 "$commands/python" $here/triton.py --muster bin/muster
