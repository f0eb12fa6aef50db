#!/usr/bin/env bash
# Looks for known vulnerabilities in the code that Muster calls. Its arguments go to govulncheck
# (-db file:///... for another database). If the database cannot be reached, it says so and succeeds;
# any other failure is an error. `make vulncheck` calls it.
set -euo pipefail
cd "$(dirname "$0")/.."

skip() {
  echo "vulncheck: SKIPPED, nothing was checked: the database of vulnerabilities is out of reach" >&2
  exit 0
}

# Without the database govulncheck would compile everything first, in vain.
database=https://vuln.go.dev/index/modules.json.gz
if [ $# = 0 ] && command -v curl >/dev/null &&
  ! curl --silent --head --fail --max-time 20 "$database" >/dev/null; then
  skip
fi
errors=$(mktemp)
trap 'rm -f "$errors"' EXIT
status=0
go run golang.org/x/vuln/cmd/govulncheck@v1.8.0 "$@" ./... 2>"$errors" || status=$?
cat "$errors" >&2
if [ "$status" = 0 ]; then
  echo "vulncheck: ok"
# What this version of govulncheck says if there is no connection, or if a proxy refuses it.
elif grep -Eq '^govulncheck: fetching vulnerabilities: (Get "https?:|HTTP GET )' "$errors"; then
  skip
else
  echo "vulncheck: failed: vulnerabilities were found, or govulncheck could not finish; see above" >&2
  exit 1
fi
