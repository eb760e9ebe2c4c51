"""redis-server with redis-benchmark and redis-cli."""

from __future__ import annotations

import csv
import io

import pytest

from tests.apps.lib import counters
from tests.apps.lib.data import blob, sha256
from tests.apps.lib.lab import Lab
from tests.apps.lib.modes import Mode
from tests.apps.lib.net import free_port, wait_listening
from tests.apps.lib.process import Process
from tests.apps.lib.results import Results

CLIENTS = 50
VALUE_BYTES = 512
KEYS = 1000  # few enough that the SETs write every one before the GETs read
LARGE_BYTES = 8 << 20
SAVING_CLIENTS = 20
SAVING_REQUESTS = 200_000  # several saves long, also when accelerated


def start_server(lab: Lab, accelerated: bool) -> tuple[Process, int]:
    port = free_port()
    server = lab.start(
        "redis-server",
        [
            *("redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""),
            *("--appendonly", "no", "--dir", lab.folder, "--latency-monitor-threshold", "0"),
        ],
        accelerated=accelerated,
    )
    wait_listening(port, server)
    return server, port


def query(lab: Lab, port: int, *words: str) -> str:
    """One command over a connection of its own, which is never accelerated."""
    return lab.run("redis-cli-native", ["redis-cli", "-p", str(port), *words])


def info(lab: Lab, port: int, section: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in query(lab, port, "INFO", section).splitlines())
    return {key: value.strip() for key, _, value in pairs if value}


@pytest.mark.parametrize("threads", [1, 2])
def test_benchmark(mode: Mode, threads: int, lab: Lab, results: Results) -> None:
    server, port = start_server(lab, mode.server)
    requests = 60_000  # long enough to be asked for its counters, and for links on a busy machine
    load = lab.load(
        "redis-benchmark",
        [
            *("redis-benchmark", "-h", "127.0.0.1", "-p", str(port), "-t", "set,get", "--csv"),
            *("-c", str(CLIENTS), "-n", str(requests), "-d", str(VALUE_BYTES), "-r", str(KEYS)),
            *(("--threads", str(threads)) if threads > 1 else ()),
        ],
        mode,
    )
    rows = list(csv.DictReader(io.StringIO(load.printed)))
    assert [row["test"] for row in rows] == ["SET", "GET"]
    assert all(float(row["rps"]) > 0 for row in rows)
    payload = 2 * requests * VALUE_BYTES
    seen = lab.judge(mode, server=server, client=load, payload_bytes=payload, share=0.95)
    stats = info(lab, port, "commandstats")
    for command in ("set", "get"):
        assert stats[f"cmdstat_{command}"].startswith(f"calls={requests},")
        assert "failed_calls=0" in stats[f"cmdstat_{command}"]
    assert query(lab, port, "DBSIZE").strip() == str(KEYS)
    results.add(
        f"redis-benchmark x{threads}",
        mode,
        seen,
        requests=2 * requests,
        payload_bytes=payload,
        seconds=load.seconds,
    )


def test_cli(mode: Mode, lab: Lab, results: Results) -> None:
    """One connection that stays: small commands, then large values, all verified."""
    server, port = start_server(lab, mode.server)
    client = lab.start("redis-cli", ["redis-cli", "-p", str(port)], accelerated=mode.client, interactive=True)
    for number in range(50):
        client.send_line(f"ECHO {number}")
    large = blob(LARGE_BYTES // 2).hex()
    client.send_line(f"SET large {large}")
    client.send_line("GET large")
    client.send_line("ECHO finished")
    client.wait_line("finished")
    answers = client.stdout().splitlines()
    assert answers[:50] == [str(number) for number in range(50)]
    assert answers[50] == "OK"
    assert sha256(answers[51].encode()) == sha256(large.encode()), "the large value came back changed"
    payload = 2 * len(large)
    seen = lab.judge(mode, server=server, client=client, payload_bytes=payload, share=0.9)
    results.add("redis-cli", mode, seen, requests=53, payload_bytes=payload)


def test_pipe(mode: Mode, lab: Lab) -> None:
    """redis-cli --pipe: a long one-way stream of commands, and as many answers."""
    server, port = start_server(lab, mode.server)
    commands = 200_000  # several times the kernel's buffers, which fill before the connection is on its link
    script = lab.folder / "commands"
    script.write_text("".join(f"SET key:{n} {sha256(str(n).encode())}\r\n" for n in range(commands)))
    shell = f"exec redis-cli -p {port} --pipe <{script}"
    load = lab.load("redis-cli-pipe", ["sh", "-c", shell], mode)
    assert f"errors: 0, replies: {commands}" in load.printed
    for n in (0, 777, commands - 1):
        assert query(lab, port, "GET", f"key:{n}").strip() == sha256(str(n).encode())
    lab.judge(mode, server=server, client=load, payload_bytes=script.stat().st_size, share=0.0)


def test_save_while_serving(mode: Mode, lab: Lab) -> None:
    """BGSAVE forks a child that holds every connection; none of them may notice."""
    server, port = start_server(lab, mode.server)
    load = [
        *("redis-benchmark", "-h", "127.0.0.1", "-p", str(port), "-t", "set", "-q"),
        *("-c", str(SAVING_CLIENTS), "-n", str(SAVING_REQUESTS), "-d", str(VALUE_BYTES), "-r", "5000"),
    ]
    client = lab.start("redis-benchmark", load, accelerated=mode.client)
    saves = 0
    while mode is Mode.SHM and counters.totals(server).streams_promoted < SAVING_CLIENTS:
        assert client.poll() is None, "the load has ended before its connections were on links"
    while client.poll() is None:
        query(lab, port, "BGSAVE")
        while info(lab, port, "persistence")["rdb_bgsave_in_progress"] == "1":
            assert server.poll() is None
        saves += 1
    client.finish()
    assert saves > 0
    assert info(lab, port, "persistence")["rdb_last_bgsave_status"] == "ok"
    assert info(lab, port, "commandstats")["cmdstat_set"].startswith(f"calls={SAVING_REQUESTS},")
    if mode is Mode.SHM:
        seen = counters.totals(server)
        lab.expect_link(seen, who="server", payload_bytes=SAVING_REQUESTS * VALUE_BYTES, share=0.9)
        assert seen.streams_promoted >= SAVING_CLIENTS
