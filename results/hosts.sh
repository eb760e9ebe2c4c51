#!/usr/bin/env bash
# Makes results/rxe: two emulated hosts with SoftRoCE. On an otherwise idle machine, after `ci/run.sh build` and
# `ci/run.sh props`; takes a quarter of an hour: results/hosts.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly LAB=results-$$
netacc=$PWD/target/release/netacc
trap '"$netacc" lab down --name "$LAB" >/dev/null 2>&1 || true' EXIT
measure() { # STEP, arguments of `netacc lab up`...
    local step=$1 reach="$netacc lab exec --name $LAB --timeout 3300"
    shift
    "$netacc" lab up --hosts 2 --name "$LAB" "$@"
    .venv/bin/python -m ci.eri lab1 lab2 --reach "$reach 1" "$reach 2" --addresses 10.99.0.1,fd99::1 10.99.0.2,fd99::2 \
        --binaries "$PWD/target/release" --emulated --results results --placement rxe --steps "$step"
    "$netacc" lab down --name "$LAB"
}
measure figures
# Who polls leaves QEMU waiting for milliseconds otherwise.
measure polled --real-time
