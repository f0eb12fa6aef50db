#!/usr/bin/env bash
# Tests python/, the client and what goes with it, against real agents, on the oldest and the newest
# Python of this machine that ONNX Runtime supports. It needs bin/muster; `make python-test` builds that
# first.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."

# Those that ONNX Runtime's wheels are for, and requires-python of python/pyproject.toml allows.
found=()
# pyenv's are on PATH only where it is told so.
for minor in 11 12 13 14; do
  for python in "python3.$minor" "$HOME/.pyenv/versions/3.$minor."*"/bin/python3.$minor"; do
    if "$python" -c 'import venv, ensurepip' 2>/dev/null; then
      found+=("$python")
      break
    fi
  done
done
if [ ${#found[@]} = 0 ]; then
  echo "python: no Python from 3.11 to 3.14 with venv on this machine" >&2
  exit 1
fi
pythons=("${found[0]}")
if [ ${#found[@]} -gt 1 ]; then pythons+=("${found[-1]}"); fi

MUSTER_BINARY=$PWD/bin/muster
export MUSTER_BINARY ORT_DISABLE_TELEMETRY=1
environment="python-export" # the oldest one has the libraries that muster.export takes models of
for python in "${pythons[@]}"; do
  commands=$(PYTHON=$python scripts/venv.sh $environment)
  environment=python
  echo "=== $("$commands/python" --version)"
  (cd python && "$commands/python" -m pytest --quiet --durations=3 "$@")
done
