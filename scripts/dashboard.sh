#!/usr/bin/env bash
# Tests the dashboard's page: its functions in Node, how it looks and behaves in a real Chromium with
# fleets of fixtures behind it, and beside a real fleet. It needs bin/muster; `make dashboard-test`
# builds that first. UPDATE=1 writes the pictures of agent/dashboard/webtest/pictures anew.
#
# playwright-core and axe-core come from npm into build/dashboard, Chromium from apt-get where there
# is none. What this system lacks is said, and what needs it is left out.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
  echo "dashboard: skipped: there is no Node.js with npm"
  exit 0
fi
into=build/dashboard
mkdir -p "$into"
cp agent/dashboard/package.json agent/dashboard/package-lock.json "$into"
if ! cmp -s "$into/package-lock.json" "$into/installed"; then
  if npm ci --prefix "$into" --ignore-scripts --no-audit --no-fund --loglevel=error; then
    cp "$into/package-lock.json" "$into/installed"
  else
    echo "dashboard: npm has no playwright-core: what needs a browser is skipped"
  fi
fi
if ! command -v chromium >/dev/null && [ -z "${CHROMIUM:-}" ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    (apt-get -qq update && apt-get -qq install --yes --no-install-recommends chromium) >"$into/apt.log" 2>&1 ||
      echo "dashboard: apt-get has no Chromium: $(tail -n 1 "$into/apt.log")"
  fi
  command -v chromium >/dev/null || echo "dashboard: there is no Chromium: what needs one is skipped"
fi
status=0
timeout 540 node --test --test-concurrency=1 --test-reporter=spec \
  agent/dashboard/webtest/pure.test.js agent/dashboard/webtest/browser.test.js \
  agent/dashboard/webtest/live.test.js agent/dashboard/webtest/renting.test.js >"$into/log" 2>&1 || status=$?
grep -E '✖|ℹ|﹣|# SKIP|skipped' "$into/log" || true
if [ "$status" -ne 0 ]; then
  cat "$into/log"
  echo "dashboard: failed; pictures that differ are in $into/pictures"
  exit 1
fi
echo "dashboard: ok"
