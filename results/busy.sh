#!/usr/bin/env bash
# Records round trips beside 0, 1, 2 and 4 threads that compute: results/busy/N, by `netacc bench echo --busy N`.
#
# 64 bytes, both ends in blocking calls, kernel TCP and shared memory in turns. Takes a minute. Run it on an idle machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly BIN="${NETACC_BIN_DIR:-target/release}"
readonly OUT="${1:-results/busy}"

mkdir -p "$OUT"
for busy in 0 1 2 4; do
    rm -rf "${OUT:?}/$busy"
    "$BIN/netacc" bench echo --paths tcp,shm --mode blocking --pairs 5 --seconds 1 --busy "$busy" --record "$OUT/$busy"
done
