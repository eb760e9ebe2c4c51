"""The rows of the tables that are made of records. The text lays them out."""

from __future__ import annotations

from math import floor
from statistics import median

from paper.reading import Reader
from paper.values import (
    ERDMA,
    ERDMA_FAULTS,
    FAILURES,
    LOADS,
    MANY,
    MODEL,
    RESULTS,
    RSTREAM,
    RXE,
    SEEN,
    Format,
    per_second,
    plain,
    turns,
    whole,
)

Rows = list[list[str]]

#: Between the ends of a range.
TO = "\N{EN DASH}"


def everything(reader: Reader) -> tuple[dict[str, Rows], dict[str, list[str]]]:
    """All tables, by the name of the function that makes each, and the records of each."""
    parts = (loads, many, models, executors, programs, rstream, deployments, failures, faults)
    cells: dict[str, Rows] = {}
    sources: dict[str, list[str]] = {}
    for part in parts:
        reader.readings.clear()
        cells[part.__name__] = part(reader)
        sources[part.__name__] = reader.records()
    return cells, sources


#: What the text calls the loads.
NAMES = {
    "c100": "Redis SET 512 B, 100 clients",
    "threads4": "the same, 4 client threads",
    "c1000.set": "Redis SET 3 B, 1000 clients",
    "c1000.get": "Redis GET 3 B, 1000 clients",
    "spin": "ping-pong 64 B, both spin",
    "epoll": "ping-pong 64 B, both in epoll",
    "nospin": "the same, spinning off",
    "stream": "one stream, 1 MiB writes",
    "connect": "connect and close",
}


def span(reader: Reader, record: str, key: str) -> str:
    """A median with its range."""
    found = {part: reader.number(record, f"{key}.{part}") for part in ("median", "min", "max")}
    if found["min"] == found["max"]:
        return plain(found["median"])
    return f"{plain(found['median'])} ({plain(found['min'])}{TO}{plain(found['max'])})"


def loads(reader: Reader) -> Rows:
    """One machine: rates on three paths, and ratios of shared memory to TCP."""
    rows = []
    for name, title in NAMES.items():
        record, at = LOADS[name]
        rates = [reader.number(record, f"{at}.{path}.requests_per_s") for path in ("tcp", "unix", "shm")]
        if name == "stream":
            shown = [f"{rate / 1024:.1f} GiB" for rate in rates]
        else:
            shown = [per_second(rate) for rate in rates]
        ratios = [
            plain(reader.number(record, f"{at}.shm.{key}.median"))
            for key in ("ratio_p50_to_tcp", "ratio_p99_to_tcp", "ratio_server_cpu_to_tcp")
        ]
        rows.append([title, *shown, span(reader, record, f"{at}.shm.ratio_to_tcp"), *ratios])
    return rows


def many(reader: Reader) -> Rows:
    """Many connections at a time."""
    rows = []
    for record in MANY.values():
        number = reader.number(record, "params.clients")
        processes = reader.number(record, "params.processes")
        rows.append([
            f"{whole(number)} / {whole(processes)}",
            plain(reader.number(record, "machine.busy_processors")),
            span(reader, record, "paths.shm.ratio_to_tcp"),
            plain(reader.number(record, "paths.shm.ratio_p50_to_tcp.median")),
            plain(reader.number(record, "paths.shm.ratio_p99_to_tcp.median")),
            f"{reader.number(record, 'paths.shm.crowd.server_bytes') / 1024:.1f}, "
            f"{reader.number(record, 'paths.shm.crowd.client_bytes') / 1024:.1f}",
        ])  # fmt: skip
    return rows


#: The families of bounds of the model check, and what is free in each besides reads, deliveries and notices.
FAMILIES = {
    "promotion": "promotion, half-close, one link death",
    "second attempt": "two attempts, two deaths, leaves; slow writers",
    "failed writes": "writes that would void a pledge fail",
    "demotion": "either side, or both, leave the link",
    "close after writing": "one side closes after its last byte",
    "close": "either or both close or abort, bytes unread",
    "crash": "one process is killed",
    "slow": "no credit, no room, records arrive in halves",
    "credit": "more bytes than the ring has room for",
}


def models(reader: Reader) -> Rows:
    """What the model check has explored."""
    rows = []
    for name, what in FAMILIES.items():
        found = {
            key: reader.number(MODEL, f"families.{name}.{key}")
            for key in ("configurations", "states", "depth")
        }
        rows.append([what, whole(found["configurations"]), whole(found["states"]), whole(found["depth"])])
    totals = (whole(reader.number(MODEL, key)) for key in ("configurations", "states", "depth"))
    return [*rows, ["all", *totals]]


#: The executors of the counted run.
EXECUTORS = {
    "shm": "the library, shared memory",
    "harness": "the core, seeded scheduler",
    "ns3": "the core in ns-3",
}


def executors(reader: Reader) -> Rows:
    """Generated programs by executor."""
    rows = []
    for name, what in EXECUTORS.items():
        columns = ("programs", "steps", "moved bytes off kernel TCP", "differ")
        rows.append([what, *(reader.cell(SEEN, "By executor", name, column) for column in columns)])
    return rows


def programs(reader: Reader) -> Rows:
    """Real programs: the share of their bytes on links."""
    return [
        [each["program"], f"{floor(each['link_share'] * 1000) / 10:.1f}"]
        for each in reader.any("results/apps.json", "results")
        if each["mode"] == "shm"
    ]


def rstream(reader: Reader) -> Rows:
    """rstream over SoftRoCE: medians of the turns, with ranges."""
    rows = []
    figures: dict[str, tuple[str, Format]] = {
        "round trip (ms)": ("round_trip_us", lambda us: plain(us / 1000)),
        "messages (k/s)": ("messages_per_s", lambda rate: plain(rate / 1000)),
        "stream (Gbit/s)": ("gbit_per_s", plain),
    }
    for title, (figure, shown) in figures.items():
        row = [title]
        for stack in ("tcp", "rsockets", "netacc"):
            found = turns(reader, RSTREAM, f"figures.{stack}.rstream_turns", figure)
            row.append(f"{shown(median(found))} ({shown(min(found))}{TO}{shown(max(found))})")
        rows.append(row)
    return rows


#: Programs between two hosts: their titles, and the figure of each.
DEPLOYED = {
    "redis-single": ("Redis, SET/s", "set_per_s"),
    "redis-replica": ("replicated, SET/s", "set_per_s"),
    "redis-cluster": ("Cluster, SET/s", "set_per_s"),
    "memcached": ("memcached, set/s", "set_per_s"),
    "nginx": ("nginx, requests/s", "requests_per_s"),
    "postgresql": ("PostgreSQL, trans./s", "transactions_per_s"),
}


def deployments(reader: Reader) -> Rows:
    """Real programs over SoftRoCE."""
    rows = []
    for name, (title, figure) in DEPLOYED.items():
        cells = []
        for stack in ("tcp", "rsockets", "netacc"):
            works = reader.any(RXE, f"figures.{stack}.programs.{name}.works")
            at = f"figures.{stack}.programs.{name}.figures.{figure}"
            cells.append(whole(reader.number(RXE, at)) if works else "fails")
        share = reader.number(RXE, f"figures.netacc.programs.{name}.link_share")
        rows.append([title, *cells, f"{share * 100:.0f} %"])
    return rows


#: What the text calls the failures.
FAILED = {
    "removed": "device removed",
    "error": "queue pair in error",
    "firewall": "firewall drops the device's packets",
    "down": "interface down, until up again",
    "both": "both interfaces down",
    "killed": "peer killed, until the other sees it",
    "lossy": "1 packet of 20 lost",
}


def failures(reader: Reader) -> Rows:
    """The longest pause of a conversation."""
    rows = []
    for name, title in FAILED.items():
        cells = [
            reader.cell(RESULTS, "Failures", FAILURES[name], column)
            for column in ("soft-iWARP", "SoftRoCE", "bound")
        ]
        # Of a cell with a history, what is true now.
        rows.append([title, *(cell.split(";")[0].replace(" to ", TO) or "not run" for cell in cells)])
    return rows


#: What the text calls the faults.
FAULTY = {
    "event": "asynchronous access error",
    "early": "SENDs complete and never arrive",
    "retry": "RETRY_EXC after 1 s; after 4 s",
    "silent": "function sends nothing; handles nothing",
    "lost": "1 interrupt lost; 20 lost",
    "refused": "CREATE_QP refused; REG_MR refused",
}


def faults(reader: Reader) -> Rows:
    """Faults of an emulated eRDMA function: the longest block."""
    readme = f"{ERDMA}/README.md"
    rows = []
    for name, title in FAULTY.items():
        cell = reader.cell(readme, "Faults on command", ERDMA_FAULTS[name], "longest block")
        rows.append([title, cell.replace(" to ", TO)])
    return rows
