#!/usr/bin/env bash
# Records where a Redis request spends its time between two emulated hosts with eRDMA's true driver and provider:
# results/trace/verbs, by `netacc trace` on both hosts. One client, one request at a time, SET of 64 bytes. Software
# emulation is much slower than hardware: compare stages with each other, not with those on the machine itself.
#
# After `ci/run.sh build`, on an otherwise idle machine; takes some minutes, and at its first run the lab's downloads.
#
#     results/trace_verbs.sh [FOLDER]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

BIN="$(realpath "${NETACC_BIN_DIR:-target/release}")"
readonly BIN OUT="${1:-results/trace}/verbs" LAB="trace-$$" SERVER=10.99.0.1
events="$(mktemp -d)"
trap '"$BIN/netacc" lab down --name "$LAB" >/dev/null 2>&1 || true; rm -rf "$events"' EXIT
on() { # HOST, COMMAND...
    "$BIN/netacc" lab exec --name "$LAB" --timeout 300 "$@"
}
wait_for() { # HOST, a shell command that succeeds
    on "$1" -- sh -c "until $2; do sleep 0.2; done"
}
# Of the process with that name, on a host.
on_link() { echo "[ \"\$($BIN/netacc_ss -p \$(pgrep -x $1) -s cnt | awk '/^streams_promoted/ { print \$2 }')\" -ge 1 ]"; }

"$BIN/netacc" lab up --hosts 2 --rdma erdma --name "$LAB"
on 1 -- "$BIN/netacc_run" redis-server --bind "$SERVER" --protected-mode no --port 7777 --save "" --dir /tmp >/dev/null &
wait_for 1 "redis-cli -h $SERVER -p 7777 ping 2>/dev/null | grep -q PONG"
on 2 -- "$BIN/netacc_run" redis-benchmark -h "$SERVER" -p 7777 -t set -c 1 -d 64 -n 1000000000 -q >/dev/null &
wait_for 2 "pgrep -x redis-benchmark >/dev/null"
# The benchmark's first connection asks for the server's configuration; the second one is measured.
wait_for 2 "$(on_link redis-benchmark)"

tracers=()
for host in 1 2; do
    program=redis-server
    [ "$host" = 1 ] || program=redis-benchmark
    # A host alone sees no message as a whole, which is status 7.
    trace="$BIN/netacc trace -p \$(pgrep -x $program) --duration 12s --window 1s --every 1s --events /tmp/events >/dev/null 2>&1"
    on "$host" -- sh -c "$trace; [ \$? = 7 ] && cat /tmp/events" >"$events/$host" &
    tracers+=($!)
done
for tracer in "${tracers[@]}"; do wait "$tracer"; done
rm -rf "${OUT:?}"
mkdir -p "$(dirname "$OUT")"
"$BIN/netacc" trace --join "$events/1" "$events/2" --record "$OUT"
