#!/usr/bin/env bash
# record.sh: makes the golden recordings in leader/testdata/recordings anew, with bin/muster as
# `make build` has just made it. Run it where decisions change on purpose: then raise
# leader.DeciderVersion, and let TestRecordings name the new hash. The commit says what decides
# otherwise, and why.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=leader/testdata/recordings
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# record NAME ARGUMENT...: adds a run of `muster sim ARGUMENT...` to the recording NAME.
record() {
  local name=$1
  shift
  local command=(sim)
  if [[ $1 != --* ]]; then
    command+=("$1")
    shift
  fi
  bin/muster "${command[@]}" --samples published --seeds 1 --rtt-ms 0.5 --record "$dir/run" "$@" \
    >/dev/null
  cat "$dir/run" >>"$dir/$name.txt"
}

# one NAME POOL RATE DEADLINE: one model below and above its limit, in turn.
one() {
  record "$1" --model "$1" --pool "$2" --rate "$3" --deadline-ms "$4" --load 200ms:.9,200ms:1.3 \
    --merge none --queries 600
}

one rm2 g4dn.xlarge=1,r5n.large=13 135 900
one dien g4dn.xlarge=2,r5n.large=9 690 90
one mtwnd g4dn.xlarge=2,r5n.large=9 1020 60
one ncf g4dn.xlarge=2,r5n.large=9 6000 15
one wnd g4dn.xlarge=2,r5n.large=9 1400 60
record mixed --model wnd --model dien --model ncf --pool g4dn.xlarge=1,r5n.large=4 --rate 700 \
  --deadline-ms 90 --merge none --queries 400
record faults faults --model dien --pool g4dn.xlarge=2,r5n.large=9 --rate 450 --rtt-ms 1 --queries 800 \
  --fault cut-r5n.large-3@400ms+500ms --fault kill-leader@900ms
for policy in kairos fcfs; do
  record policies --policy "$policy" --model wnd --pool g4dn.xlarge=1,r5n.large=3 \
    --rate 500 --deadline-ms 60 --merge none --queries 120
done

gzip -9n "$dir"/*.txt
cp "$dir"/*.txt.gz "$out"
