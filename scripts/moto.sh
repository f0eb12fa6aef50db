#!/usr/bin/env bash
# Holds cloud/ec2 and models/store/remote against moto, a program that answers like AWS, on a loopback
# port. Between cloud/ec2 and moto stands the proxy of the test, which adds what moto lacks: client
# tokens, shortage, throttling and answers that are lost. The tests start bin/muster-ec2, too, as an
# agent does. The last one makes the stack of deploy/ec2. `make moto` calls it.
set -euo pipefail
cd "$(dirname "$0")/.."

commands=$(scripts/venv.sh moto)
log=build/moto.log
# Port 0 lets the system choose one, and werkzeug says in the log which.
"$commands/moto_server" -H 127.0.0.1 -p 0 >"$log" 2>&1 &
moto=$!
trap 'kill $moto 2>/dev/null || true' EXIT
for _ in $(seq 300); do
  url=$(sed -n 's/.*Running on \(http:[^ ]*\).*/\1/p' "$log" | head -1)
  if [ -n "$url" ] && curl -sf "$url/moto-api/" >/dev/null; then break; fi
  if ! kill -0 $moto 2>/dev/null; then
    cat "$log" >&2
    exit 1
  fi
  sleep 0.1
done
export MUSTER_EC2=$PWD/bin/muster-ec2 MOTO_URL=$url
go test -trimpath -vet=off -count=1 -timeout 240s -run '^TestMoto$' -v ./cloud/ec2 ./models/store/remote
"$commands/python" scripts/test/stack/stack.py --moto "$url"
