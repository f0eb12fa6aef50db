#!/usr/bin/env bash
# Measures Muster beside other servers of models; see peers/main.go. `scripts/peers.sh --rounds 9` does all.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -x bin/muster ] || make build
exec go run -trimpath ./scripts/peers "$@"
