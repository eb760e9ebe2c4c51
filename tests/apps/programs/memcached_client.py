"""Sets and gets values of all sizes from several threads, and verifies each."""

from __future__ import annotations

import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from pymemcache.client.base import Client

from tests.apps.lib.client import Stopwatch

KEYS = 400  # of each thread
LARGE_BYTES = 900_000  # below memcached's limit of 1 MiB an item


def load(port: int, number: int, watch: Stopwatch, lock: threading.Lock) -> None:
    rng = random.Random(number)
    client = Client(("127.0.0.1", port), timeout=60, no_delay=True)
    values = {f"{number}:{n}": rng.randbytes(rng.randint(1, 8192)) for n in range(KEYS)}
    values[f"{number}:large"] = rng.randbytes(LARGE_BYTES)
    for key, value in values.items():
        assert client.set(key, value, noreply=False), f"{key} was not stored"
    for key, value in values.items():
        assert client.get(key) == value, f"{key} came back changed"
    names = list(values)
    for start in range(0, KEYS, 50):
        group = names[start : start + 50]
        assert client.get_many(group) == {key: values[key] for key in group}, "get_many differs"
    assert client.delete(names[0], noreply=False) and client.get(names[0]) is None
    client.set(f"{number}:count", b"0", noreply=False)
    for expected in range(1, 101):
        assert client.incr(f"{number}:count", 1, noreply=False) == expected
    moved = sum(map(len, values.values())) * 3 - LARGE_BYTES  # set, get, get_many of all but the large one
    with lock:
        watch.count(moved, requests=2 * len(values) + KEYS // 50 + 103)
    client.close()


def main(port: int, threads: int) -> None:
    watch, lock = Stopwatch(), threading.Lock()
    with ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(load, port, number, watch, lock) for number in range(threads)]:
            future.result()
    watch.finish()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
