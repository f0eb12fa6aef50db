#!/usr/bin/env bash
# tool.sh NAME MODULE VERSION: builds the command NAME of a Go module in build/tools and prints its
# path. If it is there already, it only prints the path. It does not use `go install`, which asks the
# module proxy for all versions of the module: not every proxy answers that.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."

at=$PWD/build/tools/$1-$3/$1
if [ ! -x "$at" ]; then
  go mod download "$2@$3" >&2
  source=$(cd / && go list -m -f '{{.Dir}}' "$2@$3")
  # The tool runs on this machine, also when the build is for another.
  GOFLAGS='' GOOS='' GOARCH='' go build -C "$source" -o "$at" "./cmd/$1" >&2
fi
echo "$at"
