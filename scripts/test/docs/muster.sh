#!/usr/bin/env bash
# Stands for muster while the commands of pages run; commands_test.go says how.
set -euo pipefail

has() { # FLAG ARGUMENT...: whether one of the arguments is the flag
  local flag=$1 each
  shift
  for each in "$@"; do [[ $each == "$flag" || $each == "$flag="* ]] && return; done
  return 1
}

case "${1-} ${2-}" in
agent*)
  # An agent runs in the background until another one is started with the same gRPC address, as if
  # the user had ended it. It may take a while to be ready; its log says when.
  grpc=127.0.0.1:8001 previous=
  for each in "$@"; do
    [[ $previous != --grpc ]] || grpc=$each
    previous=$each
  done
  [[ $grpc != :* ]] || grpc=127.0.0.1$grpc
  file=agent-${grpc//[:.]/-}
  if [[ -f $file.pid ]] && kill "$(cat "$file.pid")" 2>/dev/null; then
    while kill -0 "$(cat "$file.pid")" 2>/dev/null; do sleep 0.1; done
  fi
  "$BINARY" "$@" >"$file.log" 2>&1 </dev/null &
  echo $! >"$file.pid"
  until grep -q 'event=ready' "$file.log"; do
    kill -0 "$(cat "$file.pid")" 2>/dev/null || {
      echo "muster $* ended" >&2
      exit 1
    }
    sleep 0.1
  done
  exit
  ;;
bench*)
  has --duration "$@" || set -- "$@" --duration "$BENCH_DURATION"
  ;;
"sim throughput" | "sim compare" | "sim faults" | sim\ --* | plan\ --*)
  has --queries "$@" || has --from "$@" || set -- "$@" --queries "$SIM_QUERIES"
  has --seeds "$@" || set -- "$@" --seeds 1
  ;;
esac
exec "$BINARY" "$@"
