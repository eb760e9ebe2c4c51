#!/usr/bin/env bash
# Makes records of the paper again: paper/record.sh [NAME...]. Without names: all that a laptop can.
#
# `ci/run.sh paper-records` builds what it needs, and then runs it. Measure on an idle machine. README.md beside this
# file says what each record is for, and how long it takes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly NETACC="${NETACC_BIN_DIR:-target/release}/netacc"
readonly PYTHON=.venv/bin/python
readonly LAPTOP=(counts model simulation measured loads many busy datagrams trace)

record_counts() { "$PYTHON" -m paper.record counts; }
record_model() { "$PYTHON" -m paper.record model; }
record_simulation() { "$PYTHON" -m paper.record simulation; }
record_measured() { "$PYTHON" -m paper.record measured; }
record_loads() { results/make.sh; }
record_busy() { results/busy.sh; }
record_datagrams() {
    "$NETACC" bench datagrams --json results/datagrams.json
    "$NETACC" bench datagrams --sizes 64,1472,60000 --busy 2 --pairs 5 --json results/datagrams-busy2.json
}
record_trace() { results/trace.sh; }
# Two emulated hosts: a machine that can emulate them, and a quarter of an hour.
record_hosts() { results/hosts.sh; }

# 19,800 connections need `ulimit -n 20000`.
record_many() {
    local options=(--paths "tcp,shm" --seconds 2)
    "$NETACC" bench many "${options[@]}" --pairs 2 --clients 1000 --json results/many-c1000.json
    "$NETACC" bench many "${options[@]}" --pairs 2 --clients 5000 --json results/many-c5000.json
    "$NETACC" bench many "${options[@]}" --pairs 2 --clients 5000 --processes 10 --json results/many-c5000-processes10.json
    "$NETACC" bench many "${options[@]}" --pairs 1 --clients 19800 --processes 10 --json results/many-c19800-processes10.json
    "$NETACC" bench redis --paths tcp,shm --seconds 4 --pairs 3 --clients 8000 --size 3 --tests set \
        --json results/redis-c8000.json
}

[ $# != 0 ] || set -- "${LAPTOP[@]}"
for name; do
    declare -F "record_$name" >/dev/null || { echo "error: no record named '$name'" >&2; exit 1; }
done
for name; do
    echo "==> $name" >&2
    "record_$name"
done
