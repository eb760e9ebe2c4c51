"""A client of an etcd server, by its JSON gateway: writes keys and reads them back, every value verified.

etcd_client.py PORT CONNECTIONS KEYS
"""

from __future__ import annotations

import base64
import http.client
import json
import random
import sys
from concurrent.futures import ThreadPoolExecutor

from tests.apps.lib.client import Stopwatch

MOST_BYTES = 4 << 10


def call(connection: http.client.HTTPConnection, name: str, body: dict[str, str]) -> dict[str, object]:
    connection.request("POST", f"/v3/kv/{name}", json.dumps(body))
    response = connection.getresponse()
    answer: dict[str, object] = json.load(response)
    assert response.status == 200, answer
    return answer


def converse(port: int, number: int, keys: int) -> int:
    rng = random.Random(number)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    payload = 0
    for index in range(keys):
        key = base64.b64encode(f"{number}/{index}".encode()).decode()
        value = base64.b64encode(rng.randbytes(rng.randrange(1, MOST_BYTES))).decode()
        call(connection, "put", {"key": key, "value": value})
        found = call(connection, "range", {"key": key})["kvs"]
        assert isinstance(found, list)
        assert [kv["value"] for kv in found] == [value], "the value differs from the written one"
        payload += 2 * len(value)
    connection.close()
    return payload


def main(port: int, connections: int, keys: int) -> None:
    watch = Stopwatch()
    with ThreadPoolExecutor(connections) as pool:
        for payload in pool.map(lambda number: converse(port, number, keys), range(connections)):
            watch.count(payload, requests=2 * keys)
    watch.finish()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
