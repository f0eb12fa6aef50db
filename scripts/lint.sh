#!/usr/bin/env bash
# Checks the form of the code (gofmt, no line above 120 columns, go vet, staticcheck, shellcheck,
# ruff; each tool in a pinned version), and that NOTICE names all that the binary contains.
# `make lint` calls it.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/venv.sh lint >/dev/null & # pip waits for the network while the compiler uses the CPUs
venv=$!

unformatted=$(git ls-files '*.go' | xargs gofmt -l)
if [ -n "$unformatted" ]; then
  echo "lint: not gofmt-ed:" >&2
  echo "$unformatted" >&2
  exit 1
fi
# A tab counts as four columns. Generated code and test data are as they come.
# shellcheck disable=SC2016 # the program is Perl's
long=$(git ls-files '*.go' '*.sh' '*.py' '*.proto' '*.yaml' '*.yml' '*.md' Makefile .ci/run \
  ':!:*.pb.go' ':!:**/testdata/**' | xargs perl -CSD -ne 's/\t/    /g; chomp;
    print "$ARGV:$.: ", length, "\n" if length > 120; close ARGV if eof')
if [ -n "$long" ]; then
  echo "lint: more than 120 columns:" >&2
  echo "$long" >&2
  exit 1
fi
# -trimpath keeps the folder's name out of what is compiled, so all clones share the build cache, and
# all of this shares it with `make build`.
GOFLAGS="$(go env GOFLAGS) -trimpath"
export GOFLAGS
"$(scripts/tool.sh staticcheck honnef.co/go/tools v0.8.2)" ./...
go vet ./...
go run ./scripts/notice -check

wait "$venv"
commands=$(scripts/venv.sh lint)
git ls-files '*.sh' .ci/run | xargs "$commands/shellcheck"
"$commands/ruff" check --quiet scripts examples
"$commands/ruff" format --check --quiet scripts examples
echo "lint: ok"
