"""Clients of an etcd cluster, by its JSON gateway: registers with a history of all operations.

register_client.py HISTORY PORT...

Each client talks to one member, and to the next one after an error. The registers are used one after the
other, so that a checker has short histories. Values are written once, so that a read names the write that it
has seen. For each operation that has succeeded, a line "completed N" is printed. The line "stop" on standard
input ends the clients.
"""

from __future__ import annotations

import base64
import http.client
import itertools
import json
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.apps.lib.client import Stopwatch

CLIENTS = 6
#: Operations on one register.
TURNS = 60
VALUE_BYTES = 1000
TIMEOUT_S = 5.0


class RefusedError(Exception):
    """The operation was not sent at all."""


@dataclass
class Operation:
    """A line of the history; programs/linearizable/main.go has its meaning."""

    client: int
    key: str
    kind: str
    value: str = ""
    expected: str = ""
    found: str = ""
    swapped: bool = False
    begin: int = 0
    end: int | None = None


@dataclass
class Shared:
    """The history, and what all clients count."""

    operations: list[Operation] = field(default_factory=list)
    completed: int = 0
    payload_bytes: int = 0
    stopped: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def key(self) -> str:
        with self._lock:
            return f"register-{self.completed // TURNS}"

    def add(self, operation: Operation, payload_bytes: int) -> None:
        with self._lock:
            self.operations.append(operation)
            if operation.end is not None:
                self.completed += 1
                self.payload_bytes += payload_bytes
                print(f"completed {self.completed}", flush=True)


def text(value: str) -> str:
    """The value as it is stored: as long as all others."""
    return base64.b64encode(value.ljust(VALUE_BYTES).encode()).decode()


def stored(text: object) -> str:
    assert isinstance(text, str)
    value = base64.b64decode(text).decode()
    assert len(value) == VALUE_BYTES, "a value is not as long as it was written"
    return value.rstrip()


class Client:
    """One client, and its connection."""

    def __init__(self, number: int, ports: list[int], shared: Shared) -> None:
        self.number = number
        self.shared = shared
        self.rng = random.Random(number)
        self.members = itertools.cycle(ports[number % len(ports) :] + ports[: number % len(ports)])
        self.names = (f"{number}.{count}" for count in itertools.count())
        self.connection: http.client.HTTPConnection | None = None
        self.seen: dict[str, str] = {}

    def call(self, name: str, body: dict[str, object]) -> dict[str, object] | None:
        """The answer; None if nobody knows whether the call took effect."""
        if self.connection is None:
            connection = http.client.HTTPConnection("127.0.0.1", next(self.members), timeout=TIMEOUT_S)
            try:
                connection.connect()
            except OSError as error:
                raise RefusedError from error
            self.connection = connection
        try:
            self.connection.request("POST", f"/v3/kv/{name}", json.dumps(body))
            response = self.connection.getresponse()
            answer: dict[str, object] = json.load(response)
        except (OSError, http.client.HTTPException, ValueError):
            self.leave()
            return None
        if response.status != http.client.OK:
            self.leave()
            return None
        return answer

    def leave(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.connection = None

    def operate(self) -> None:
        key = self.shared.key()
        operation = Operation(self.number, key, self.rng.choices(["read", "write", "swap"], [4, 3, 3])[0])
        encoded = base64.b64encode(key.encode()).decode()
        name, body = "range", dict[str, object](key=encoded)
        if operation.kind != "read":
            operation.value = next(self.names)
            name, body = "put", {"key": encoded, "value": text(operation.value)}
        if operation.kind == "swap":
            operation.expected = self.seen.get(key, "")
            expected: dict[str, object] = {
                "key": encoded,
                "target": "VALUE",
                "value": text(operation.expected),
            }
            if not operation.expected:
                expected = {"key": encoded, "target": "VERSION", "version": 0}
            name, body = (
                "txn",
                {"compare": [expected | {"result": "EQUAL"}], "success": [{"requestPut": body}]},
            )
        operation.begin = time.perf_counter_ns()
        answer = self.call(name, body)
        if answer is not None:
            operation.end = time.perf_counter_ns()
            operation.swapped = bool(answer.get("succeeded"))
            operation.found = found(answer) if operation.kind == "read" else ""
            if operation.kind != "swap" or operation.swapped:
                self.seen[key] = operation.found or operation.value
        self.shared.add(operation, len(text("")))

    def run(self) -> None:
        while not self.shared.stopped.is_set():
            try:
                self.operate()
            except RefusedError:
                # Until another member is up again.
                self.shared.stopped.wait(0.01)
        self.leave()


def found(answer: dict[str, object]) -> str:
    """The value that a read has found: empty if there is none yet."""
    pairs = answer.get("kvs", [])
    assert isinstance(pairs, list)
    return stored(pairs[0]["value"]) if pairs else ""


def main(history: Path, ports: list[int]) -> None:
    watch, shared = Stopwatch(), Shared()
    with ThreadPoolExecutor(CLIENTS) as pool:
        runs = [pool.submit(Client(number, ports, shared).run) for number in range(CLIENTS)]
        assert sys.stdin.readline() == "stop\n"
        shared.stopped.set()
        for run in runs:
            run.result()
    history.write_text("".join(json.dumps(asdict(operation)) + "\n" for operation in shared.operations))
    watch.count(shared.payload_bytes, requests=shared.completed)
    watch.finish()


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(port) for port in sys.argv[2:]])
