#!/usr/bin/env bash
# Checks the form of the code (gofmt, no line above 120 columns, go vet, staticcheck, shellcheck,
# ruff, mypy; each tool in a pinned version), that NOTICE names all that the binary contains, and the
# subjects of commits.
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
# Subjects are "folder: verb object" and have at most 72 characters, in all commits after this one.
first=0313396c
if git cat-file -e "$first^{commit}" 2>/dev/null; then # a shallow clone may not have it
  wrong=$(git log --no-merges --format='%h %s' "$first"..HEAD |
    grep -vE '^[0-9a-f]+ [[:alnum:]._/-]+(, [[:alnum:]._/-]+)*: [[:lower:]].*[^.]$' || true)
  wrong+=$(git log --no-merges --format='%h %s' "$first"..HEAD |
    awk '{ subject = substr($0, index($0, " ") + 1) } length(subject) > 72')
  if [ -n "$wrong" ]; then
    echo "lint: subjects of commits that are not \"folder: verb object\" in 72 characters:" >&2
    echo "$wrong" >&2
    exit 1
  fi
fi
# -trimpath keeps the folder's name out of what is compiled, so all clones share the build cache, and
# all of this shares it with `make build`.
GOFLAGS="$(go env GOFLAGS) -trimpath"
export GOFLAGS
staticcheck=$(scripts/tool.sh staticcheck honnef.co/go/tools v0.8.2)
"$staticcheck" -tags fleet ./...
go vet -tags fleet ./...
(cd reproduce && "$staticcheck" ./... && go vet ./... && go mod tidy -diff)
go run ./scripts/tools/notice -check

wait "$venv"
commands=$(scripts/venv.sh lint)
git ls-files '*.sh' .ci/run | xargs "$commands/shellcheck"
"$commands/ruff" check --quiet scripts examples python
"$commands/ruff" format --check --quiet scripts examples python
(cd python && "$commands/mypy" --no-error-summary)
echo "lint: ok"
