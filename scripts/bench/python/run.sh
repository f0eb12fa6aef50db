#!/usr/bin/env bash
# run.sh [FLAG...]: runs latency.py with bin/muster and small models: the time of a query by the Python
# client beside tritonclient's and a bare grpcio call. It needs a quiet machine, and two minutes.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/../../.."

commands=$(scripts/venv.sh bench-python)
models=build/bench-python/models
bin/muster models generate ncf wnd rm2 --scale small --out $models >/dev/null
sed -i 's/^deadline_ms: .*/deadline_ms: 60000/' $models/*/model.yaml # others may compute, too
MUSTER_BINARY=$PWD/bin/muster PYTHONPATH=python/src \
  "$commands/python" scripts/bench/python/latency.py --models $models "$@"
