#!/usr/bin/env bash
# Records where a Redis request spends its time: results/trace/link and results/trace/anchor, by `netacc trace`, and
# results/trace/paths, by `netacc bench`: how long requests take on kernel TCP, a Unix socket and shared memory, in turns.
# results/trace_verbs.sh records the same between two hosts.
#
# One client, one request at a time, SET of 64 bytes. The second record is of the same two processes after `netacc demote`.
# Takes half a minute. Run it on an idle machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly BIN="${NETACC_BIN_DIR:-target/release}"
readonly OUT="${1:-results/trace}"

port="$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')"
"$BIN/netacc_run" redis-server --bind 127.0.0.1 --port "$port" --save "" >/dev/null &
server=$!
trap 'kill "$server" "${client:-$server}" 2>/dev/null || true' EXIT
until redis-cli -p "$port" ping >/dev/null 2>&1; do sleep 0.1; done
"$BIN/netacc_run" redis-benchmark -p "$port" -t set -c 1 -d 64 -n 1000000000 -q >/dev/null &
client=$!
# Until the processes have found out whether to spin.
sleep 5

rm -rf "${OUT:?}/link" "${OUT:?}/anchor" "${OUT:?}/paths"
mkdir -p "$OUT"
"$BIN/netacc" trace -p "$server" -p "$client" --duration 500ms --window 4ms --every 100ms --record "$OUT/link"
"$BIN/netacc" demote -p "$server" -p "$client"
"$BIN/netacc" trace -p "$server" -p "$client" --duration 2s --window 20ms --every 100ms --record "$OUT/anchor"
kill "$server" "$client"
"$BIN/netacc" bench redis --clients 1 --size 64 --paths tcp,unix,shm --pairs 5 --seconds 1 --record "$OUT/paths"
