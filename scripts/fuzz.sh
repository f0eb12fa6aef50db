#!/usr/bin/env bash
# Runs every fuzz target of the module, one after the other, for the time given (1m by default). `make fuzz` calls it.
# A finding ends it, and lies under testdata/fuzz beside the target, where `go test` tries it from then on.
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-1m}

grep -r --include='*_test.go' -Eo '^func Fuzz\w+' . | sort | while IFS=: read -r file target; do
  target=${target#func }
  echo "=== $(dirname "$file") $target"
  # Minimizing an input that is merely new would take most of the time.
  go test "$(dirname "$file")" -run '^$' -fuzz "^$target\$" -fuzztime "$time" -fuzzminimizetime 1s </dev/null
done
