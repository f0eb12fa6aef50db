#!/usr/bin/env bash
# fuzz.sh [TIME]: runs every fuzz target, one after the other, each for TIME (default 1m). It stops at
# the first failure. Go writes the input that failed to testdata/fuzz beside the target, where
# `go test` runs it from then on. `make fuzz` calls this.
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-1m}

grep -r --include='*_test.go' -Eo '^func Fuzz\w+' . | sort | while IFS=: read -r file target; do
  target=${target#func }
  echo "=== $(dirname "$file") $target"
  # Without a limit, minimizing inputs that only reach new code would take most of the time.
  go test "$(dirname "$file")" -run '^$' -fuzz "^$target\$" -fuzztime "$time" -fuzzminimizetime 1s </dev/null
done
