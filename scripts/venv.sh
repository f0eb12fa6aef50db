#!/usr/bin/env bash
# venv.sh NAME: makes build/venv-NAME of scripts/requirements-NAME.txt, once, and prints where its
# commands are. Two may ask for the same one at a time.
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
