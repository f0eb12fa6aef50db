#!/usr/bin/env bash
# Checks form: gofmt, go vet, staticcheck, shellcheck and ruff, each pinned, and that NOTICE names
# what the binary holds. `make lint` calls it.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/venv.sh lint >/dev/null & # pip waits for others, the compiler for the CPUs
venv=$!

unformatted=$(git ls-files '*.go' | xargs gofmt -l)
if [ -n "$unformatted" ]; then
  echo "lint: not gofmt-ed:" >&2
  echo "$unformatted" >&2
  exit 1
fi
# Without the folder's name in what is compiled, it is compiled and looked at once, in whichever clone.
GOFLAGS="$(go env GOFLAGS) -trimpath"
export GOFLAGS
go vet ./...
"$(scripts/tool.sh staticcheck honnef.co/go/tools v0.8.2)" ./...
go run ./scripts/notice -check

wait "$venv"
commands=$(scripts/venv.sh lint)
git ls-files '*.sh' .ci/run | xargs "$commands/shellcheck"
"$commands/ruff" check --quiet scripts
"$commands/ruff" format --check --quiet scripts
echo "lint: ok"
