#!/usr/bin/env bash
# Measures models side by side on this machine: the slowdowns of all pairs of the zoo, twice, and the
# effective machine utilisation of rm2 and wnd on a pinned core each against one model at a time on
# both. Let nothing else run. Writes to the folder given, default build/sharing, and goes on where it
# was interrupted: what is there is not measured again.
#
# ROUNDS is how often each phase of a measurement runs, 5 by default: a pair is measured up to four
# times as often, until it is precise. BENCH are more options of muster bench.
set -euo pipefail
cd "$(dirname "$0")/../.."
muster=$PWD/bin/muster
out=$(mkdir -p "${1:-build/sharing}" && cd "${1:-build/sharing}" && pwd)
[ -x "$muster" ] || make build
cd "$out"
rounds=${ROUNDS:-5}
agent=
trap '[ -z "$agent" ] || kill "$agent" 2>/dev/null || true' EXIT

[ -e models/complete ] || { "$muster" models generate all --out models && touch models/complete; }

# profile FILE MODEL...: measures pairs, unless the file is there.
profile() {
  local file=$1
  shift
  [ -e "$file" ] || "$muster" profile "$@" --pairs --rounds "$rounds" --model-dir models --out "$file"
}
for run in 1 2; do profile "pair-$run.json" rm2 wnd; done
python3 - <<'END'
import json
a, b = (json.load(open("pair-%d.json" % n))["slowdown"] for n in (1, 2))
off = max(abs(a[m][o] / b[m][o] - 1) for m in a for o in a[m])
print("slowdowns of two runs differ by %.1f %% at most" % (100 * off))
for s in a, b:
    print("rm2 beside rm2 %.3f, beside wnd %.3f" % (s["rm2"]["rm2"], s["rm2"]["wnd"]))
END
profile zoo.json ncf rm1 rm2 rm3 wnd mtwnd din dien
"$muster" place hera zoo.json --model-dir models

# throughput NAME LAYOUT MODEL[=SHARE]...: the queries/s that an agent with the layout serves of the
# models, in NAME.json.
throughput() {
  local name=$1 layout=$2 model loads=()
  shift 2
  [ ! -e "$name.json" ] || return 0
  rm -rf state
  "$muster" agent --insecure --model-dir models --state-dir state --layout "$layout" \
    --http 127.0.0.1:18310 --grpc 127.0.0.1:18311 --metrics 127.0.0.1:18312 \
    --gossip 127.0.0.1:18313 2>"$name.log" &
  agent=$!
  for model in "$@"; do
    until curl -sf "127.0.0.1:18310/v2/models/${model%=*}/ready" >/dev/null; do
      kill -0 "$agent" || { cat "$name.log" >&2 && exit 1; }
      sleep .2
    done
    loads+=(--model "$model")
  done
  # shellcheck disable=SC2086 # BENCH are several words
  "$muster" bench --server 127.0.0.1:18311 "${loads[@]}" --batch gaussian:80,30 \
    --find-throughput --json "$name.part" ${BENCH:-} >&2
  kill "$agent"
  wait "$agent" || true
  agent=
  mv "$name.part" "$name.json"
}
throughput alone-rm2 rm2:2x1 rm2
throughput alone-wnd wnd:2x1 wnd
# By their shares at the equal split of the profile.
read -r rm2 wnd < <(python3 -c '
import json
q = json.load(open("pair-1.json"))["qps"]
print(round(q["rm2"][1][0], 2), round(q["wnd"][1][0], 2))')
throughput pair rm2:1x1+wnd:1x1 "rm2=$rm2" "wnd=$wnd"
python3 - <<'END'
import json
alone = {m: json.load(open("alone-%s.json" % m)) for m in ("rm2", "wnd")}
pair = json.load(open("pair.json"))
rate = lambda r: r["allowable_throughput_qps"]
q = json.load(open("pair-1.json"))["qps"]
shares = {m: q[m][1][0] for m in q}
emu = sum(rate(pair) * shares[m] / sum(shares.values()) / rate(alone[m]) for m in shares)
print("queries/s alone on both cores", {m: rate(r) for m, r in alone.items()}, "side by side",
      rate(pair), "EMU %.3f" % emu)
END
