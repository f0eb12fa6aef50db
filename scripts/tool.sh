#!/usr/bin/env bash
# tool.sh NAME MODULE VERSION: builds the module's command NAME in build/tools, once, and prints where
# it is. It is built in its own module, whose dependencies are none of ours, and not with go install,
# which asks for all versions of the module: not every proxy answers that.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."

at=$PWD/build/tools/$1-$3/$1
if [ ! -x "$at" ]; then
  go mod download "$2@$3" >&2
  source=$(cd / && go list -m -f '{{.Dir}}' "$2@$3")
  # It runs here, whatever we build for.
  GOFLAGS='' GOOS='' GOARCH='' go build -C "$source" -o "$at" "./cmd/$1" >&2
fi
echo "$at"
