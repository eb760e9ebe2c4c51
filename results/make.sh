#!/usr/bin/env bash
# Makes the result files behind the README's figures. On an otherwise idle machine, after `make build`: results/make.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bench() { # NAME ARGUMENTS...
    local name=$1
    shift
    echo "==> netacc bench $*" >&2
    target/release/netacc bench "$@" --pairs 5 --json "results/$name.json" --plot "results/$name.svg"
}
bench redis-c100 redis --clients 100 --size 512 --threads 1 --tests set --seconds 2
bench redis-threads4 redis --clients 100 --size 512 --threads 4 --tests set --seconds 2
bench redis-c1000 redis --clients 1000 --size 3 --threads 1 --tests set,get --seconds 2
bench echo-spin echo --size 64 --mode spin --seconds 1
bench echo-epoll echo --size 64 --mode epoll --seconds 1
bench echo-epoll-nospin echo --size 64 --mode epoll --no-spin --seconds 1
for busy in 1 2 4 8; do
    bench "busy/echo-blocking-$busy" echo --size 64 --mode blocking --paths tcp,shm --busy "$busy" --seconds 2
    bench "busy/echo-epoll-$busy" echo --size 64 --mode epoll --paths tcp,shm --busy "$busy" --seconds 2
    bench "busy/redis-$busy" redis --clients 50 --size 512 --tests set --paths tcp,shm --busy "$busy" --seconds 2
done
bench stream stream --size 1MiB --seconds 2
bench connect connect --requests 10000
for requests in 1 10; do
    bench "connect-$requests" connect --requests 10000 --exchange 64 --requests-per-connection "$requests"
done
target/release/netacc bench datagrams --pairs 5 --json results/datagrams.json
for busy in 1 2 4 8; do
    target/release/netacc bench datagrams --pairs 5 --busy "$busy" -d 64,1472,60000 --json "results/datagrams-busy$busy.json"
done
python3 results/udpdk.py --json results/udpdk.json
python3 results/threads.py --json results/threads.json
python3 results/wakeups.py --json results/wakeups.json
