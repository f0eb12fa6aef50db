#!/usr/bin/env bash
# Checks form: gofmt, go vet, staticcheck, shellcheck and ruff, each pinned, and that NOTICE names
# what the binary holds. `make lint` calls it.
set -euo pipefail
cd "$(dirname "$0")/.."

unformatted=$(git ls-files '*.go' | xargs gofmt -l)
if [ -n "$unformatted" ]; then
  echo "lint: not gofmt-ed:" >&2
  echo "$unformatted" >&2
  exit 1
fi
go vet ./...
go run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...
go run ./scripts/notice -check

venv=build/venv-lint
if ! cmp -s scripts/requirements-lint.txt "$venv/requirements.txt"; then
  python3 -m venv --clear "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r scripts/requirements-lint.txt
  cp scripts/requirements-lint.txt "$venv/requirements.txt"
fi
git ls-files '*.sh' .ci/run | xargs "$venv/bin/shellcheck"
"$venv/bin/ruff" check --quiet scripts
"$venv/bin/ruff" format --check --quiet scripts
echo "lint: ok"
