#!/usr/bin/env bash
# Compares leader/internal/assign with SciPy's on the same matrices. Prints the fastest call
# of each in three rounds, in which they take turns, and the ratio.
set -euo pipefail
cd "$(dirname "$0")/../.."

commands=$(scripts/venv.sh assignment)
sizes=(5x5 10x10 20x20 50x50 100x100 200x200 500x500 1000x1000 20x1000)
go test -c -o build/assign.test ./leader/internal/assign
for _ in 1 2 3; do
  "$commands/python" scripts/tools/answers/assignment.py --bench "${sizes[@]}" | sed 's/^/scipy /'
  build/assign.test -test.run '^$' -test.bench Assignment -test.benchtime 0.5s |
    sed -nE 's|^BenchmarkAssignment/([0-9]+x[0-9]+)\S*.* ([0-9.e+]+) min-ns.*|muster \1 \2|p'
done | awk '
  !(($1, $2) in best) || $3 < best[$1, $2] { best[$1, $2] = $3 }
  END {
    printf "%-10s %12s %12s %6s\n", "size", "muster us", "scipy us", "ratio"
    n = split("'"${sizes[*]}"'", size)
    for (i = 1; i <= n; i++) {
      m = best["muster", size[i]]; s = best["scipy", size[i]]
      printf "%-10s %12.2f %12.2f %6.2f\n", size[i], m / 1000, s / 1000, m / s
    }
  }'
