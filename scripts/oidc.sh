#!/usr/bin/env bash
# Holds api/secure against the tokens of oidc-provider, a certified OpenID Connect provider, on a
# loopback port. Without npm, which installs it, nothing runs. `make oidc` calls it.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v npm >/dev/null; then
  echo "oidc: no npm, which installs oidc-provider: TestOIDCProvider is skipped" >&2
  exit 0
fi
provider=$PWD/build/oidc-provider-9.13.3
[ -d "$provider/node_modules/oidc-provider" ] ||
  npm install --silent --no-audit --no-fund --prefix "$provider" "oidc-provider@${provider##*-}" >&2
OIDC_PROVIDER=$provider go test -trimpath -vet=off -count=1 -timeout 120s -run '^TestOIDCProvider$' -v \
  ./api/secure
