#!/usr/bin/env bash
# venv.sh NAME: makes the Python environment build/venv-NAME from requirements-NAME.txt, which lies
# beside what needs it, anew if that file has changed, and prints the folder of its commands. Several
# processes may call it at the same time; a lock lets one of them install. With
# PYTHON, such as python3.13, it makes one of that Python: build/venv-NAME-python3.13.
set -euo pipefail
shopt -s globstar failglob
cd "$(dirname "$0")/.."

venv=$PWD/build/venv-$1${PYTHON:+-${PYTHON##*/}} wanted=(scripts/**/requirements-"$1".txt)
mkdir -p build
exec 9>"$venv.lock"
flock 9
if ! cmp -s "${wanted[0]}" "$venv/requirements.txt"; then
  "${PYTHON:-python3}" -m venv --clear "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r "${wanted[0]}" >&2
  cp "${wanted[0]}" "$venv/requirements.txt"
fi
echo "$venv/bin"
