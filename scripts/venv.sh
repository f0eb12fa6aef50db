#!/usr/bin/env bash
# venv.sh NAME: makes the Python environment build/venv-NAME from scripts/requirements-NAME.txt, anew
# if that file has changed, and prints the folder of its commands. Several processes may call it at
# the same time; a lock lets one of them install.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=$PWD/build/venv-$1 wanted=scripts/requirements-$1.txt
mkdir -p build
exec 9>"$venv.lock"
flock 9
if ! cmp -s "$wanted" "$venv/requirements.txt"; then
  python3 -m venv --clear "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$wanted" >&2
  cp "$wanted" "$venv/requirements.txt"
fi
echo "$venv/bin"
