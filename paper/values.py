"""The numbers of the text: names, each with what a record says, as it is printed.

`#v("NAME")` in the text prints one. A name that is not here, and a record or key that is not there, end the
build.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import floor
from statistics import median

from paper.reading import MissingError, Reader

#: Three significant digits are more than any figure here deserves.
Format = Callable[[float], str]


def plain(value: float) -> str:
    """A ratio or a time: 0.96, 6.98, 54.2, 528."""
    size = abs(value)
    return f"{value:.2f}" if size < 10 else f"{value:.1f}" if size < 100 else f"{value:,.0f}"


def whole(value: float) -> str:
    """A count: 163,795."""
    return f"{value:,.0f}"


def figure(value: float) -> str:
    """As it was published: 12.5, 287, 767,342."""
    return f"{value:.1f}" if value < 20 else f"{value:,.0f}"


def per_second(value: float) -> str:
    """A rate: 628 k."""
    return (
        f"{value / 1000:.0f} k"
        if value >= 10_000
        else f"{value / 1000:.1f} k"
        if value >= 1000
        else whole(value)
    )


def percent(value: float) -> str:
    """A share: 99.6 %."""
    # Not quite all is not all.
    if 0.999 <= value < 1:
        return f"{floor(value * 10_000) / 100:.2f} %"
    return f"{value * 100:.1f}".removesuffix(".0") + " %"


def micro(value: float) -> str:
    """Microseconds, which may be milliseconds: 1.25 µs, 15.4 ms."""
    return f"{plain(value)} µs" if value < 1000 else f"{plain(value / 1000)} ms"


@dataclass
class Values:
    """The names, each with what makes its text. Records are read for those that are wanted."""

    reader: Reader
    makers: dict[str, Callable[[], str]] = field(default_factory=dict)

    def add(self, name: str, make: Callable[[], str]) -> None:
        """A name, once."""
        assert name not in self.makers, f"{name} is there already"
        self.makers[name] = make

    def read(self, names: Iterable[str]) -> tuple[dict[str, str], dict[str, list[str]]]:
        """The texts of these names, and what each was read from."""
        texts, sources = {}, {}
        for name in names:
            if name not in self.makers:
                raise MissingError(f"the text names {name!r}, which paper/values.py has not")
            self.reader.readings.clear()
            texts[name] = self.makers[name]()
            sources[name] = list(self.reader.readings)
        return texts, sources

    def number(self, name: str, record: str, key: str, shown: Format = plain, scale: float = 1.0) -> None:
        """A number of a record."""
        self.add(name, lambda: shown(self.reader.number(record, key) * scale))

    def middle(self, name: str, record: str, rounds: str, key: str, shown: Format = plain) -> None:
        """The median of a number of several rounds."""

        def make() -> str:
            count = len(self.reader.any(record, rounds))
            return shown(median(self.reader.number(record, f"{rounds}.{i}.{key}") for i in range(count)))

        self.add(name, make)

    def cell(self, name: str, record: str, heading: str, row: str, column: str) -> None:
        """A cell of a table of Markdown."""
        self.add(name, lambda: self.reader.cell(record, heading, row, column))

    def said(self, names: str, record: str, pattern: str) -> None:
        """The groups of a sentence of Markdown, for as many names."""
        for index, name in enumerate(names.split()):

            def group(index: int = index) -> str:
                return self.reader.said(record, pattern)[index]

            self.add(name, group)


RESULTS = "results/README.md"
SEEN = "results/transparency.md"
ERDMA = "results/erdma"
MODEL = "paper/records/model.json"
COUNTS = "paper/records/counts.json"


def names(reader: Reader) -> Values:
    """All names."""
    values = Values(reader)
    for part in (
        _counts,
        _model,
        _programs,
        _bench,
        _many,
        _busy,
        _datagrams,
        _stages,
        _two_hosts,
        _erdma,
        _simulated,
    ):
        part(values)
    return values


def _counts(values: Values) -> None:
    machine = "results/redis-c100.json"
    values.add("machine.cpu", lambda: str(values.reader.any(machine, "machine.cpu")))
    values.number("machine.cores", machine, "machine.cores", whole)
    values.add("machine.kernel", lambda: str(values.reader.any(machine, "machine.kernel")).split("-")[0])
    for name in (
        "clauses", "symbols", "reasons", "mutants", "regressions", "freedoms", "scenarios", "cpython_modules",
        "redis_suite_files", "suite_differences",
    ):  # fmt: skip
        values.number(f"count.{name}", COUNTS, name, whole)
    for name in ("protocol", "preload"):
        values.number(f"lines.{name}", COUNTS, f"lines.{name}", whole)
    for name in ("send", "recv"):
        values.number(f"instructions.{name}", COUNTS, f"instructions.instructions.{name}", whole)


def _model(values: Values) -> None:
    values.number("model.states", MODEL, "states", plain, 1e-6)
    values.number("model.most", MODEL, "most_states", plain, 1e-6)
    values.number("model.configurations", MODEL, "configurations", whole)
    values.number("model.mutants", MODEL, "mutants_found", whole)
    values.add("model.regressions", lambda: whole(len(values.reader.any(MODEL, "regressions"))))


def _programs(values: Values) -> None:
    values.said("gen.big gen.big.steps", SEEN, r"\| programs, steps \| ([\d,]+), ([\d,]+) \|")
    values.said("gen.big.moved", SEEN, r"\| that moved bytes off kernel TCP \| ([\d,]+) \|")
    values.said(
        "gen.big.differ",
        SEEN,
        r"\| that differed from kernel TCP, asked three times \| (\d+), and 1 unstable",
    )
    values.said(
        "gen.big.one gen.big.rest", SEEN, r"Of the \d+, (\d+) were one fault.*?The other (\d+) were open"
    )
    late = r"of commit a93016f.*?\| `shm` \| ([\d,]+) \| [\d,]+ \| [\d,]+ \| [\d,]+ \| (\d+), and 1 unstable"
    values.said("gen.late gen.late.differ", SEEN, late)
    values.said("suite.tests suite.files", SEEN, r"all (\d+) tests of the (\d+) files")
    values.said("suite.link suite.all", SEEN, r"sent ([\d,]+) of ([\d,]+) MB on links")
    rows = "results/apps.json"
    values.add("apps.loads", lambda: whole(len(
        {each["program"] for each in values.reader.any(rows, "results") if each["mode"] == "shm"}
    )))  # fmt: skip
    values.add("apps.one-sided", lambda: whole(sum(
        each["link_bytes"] for each in values.reader.any(rows, "results") if each["mode"].endswith("-only")
    )))  # fmt: skip


#: The loads of one machine: a name, its record, the path within.
LOADS = {
    "c100": ("results/redis-c100.json", "paths"),
    "threads4": ("results/redis-threads4.json", "paths"),
    "c1000.set": ("results/redis-c1000.json", "tests.set"),
    "c1000.get": ("results/redis-c1000.json", "tests.get"),
    "spin": ("results/echo-spin.json", "paths"),
    "epoll": ("results/echo-epoll.json", "paths"),
    "nospin": ("results/echo-epoll-nospin.json", "paths"),
    "stream": ("results/stream.json", "paths"),
    "connect": ("results/connect.json", "paths"),
    "c8000": ("results/redis-c8000.json", "paths"),
}


def _bench(values: Values) -> None:
    for name, (record, within) in LOADS.items():
        at = f"{within}.shm"
        for figure, key in (
            ("rate", "ratio_to_tcp"), ("p50", "ratio_p50_to_tcp"), ("p99", "ratio_p99_to_tcp"),
            ("cpu", "ratio_server_cpu_to_tcp"),
        ):  # fmt: skip
            for part in ("median", "min", "max"):
                values.number(f"{name}.{figure}.{part}", record, f"{at}.{key}.{part}")
        values.number(f"{name}.link", record, f"{at}.link_share", percent)
    for part in ("median", "min", "max"):
        values.number(f"wakeups.{part}", "results/wakeups.json", f"ratio.{part}")
    head = "One connection on an idle machine"
    values.said(
        "idle.before.low idle.before.high idle.before idle.low idle.high idle idle.tcp.low idle.tcp.high",
        RESULTS,
        r"\| 1, nine runs each \| ([\d.]+) to ([\d.]+) k, median ([\d.]+) k \| ([\d.]+) to ([\d.]+) k, "
        r"median ([\d.]+) k \| ([\d.]+) to ([\d.]+) k, six runs",
    )
    values.cell("idle10.before", RESULTS, head, "10, three runs each", "before")
    values.cell("idle10", RESULTS, head, "10, three runs each", "after")


#: Records of many connections, by connections and client processes.
MANY = {
    "many1000": "results/many-c1000.json",
    "many5000": "results/many-c5000.json",
    "many5000x10": "results/many-c5000-processes10.json",
    "many19800": "results/many-c19800-processes10.json",
}


def _many(values: Values) -> None:
    for name, record in MANY.items():
        at = "paths.shm"
        for figure, key in (
            ("rate", "ratio_to_tcp"),
            ("p50", "ratio_p50_to_tcp"),
            ("p99", "ratio_p99_to_tcp"),
        ):
            for part in ("median", "min", "max"):
                values.number(f"{name}.{figure}.{part}", record, f"{at}.{key}.{part}")
        values.number(f"{name}.clients", record, "params.clients", whole)
        values.number(f"{name}.memory.server", record, f"{at}.crowd.server_bytes", plain, 1 / 1024)
        values.number(f"{name}.tcp.p99", record, "paths.tcp.latency_us.p99", micro)
        values.number(f"{name}.shm.p99", record, f"{at}.latency_us.p99", micro)


def _busy(values: Values) -> None:
    for busy in (0, 1, 2, 4):
        record = f"results/busy/{busy}/result.json"
        for figure, key in (("rate", "ratio_to_tcp"), ("p99", "ratio_p99_to_tcp")):
            for part in ("median", "min", "max"):
                values.number(f"busy{busy}.{figure}.{part}", record, f"paths.shm.{key}.{part}")
        during = "load.during.busy_processors"
        values.number(f"busy{busy}.other", f"results/busy/{busy}/record.json", during)


#: The stages of a message, in their order.
STAGES = ("call", "copy", "held", "post", "completion", "wire", "wake", "kernel", "ready", "read")


def stages(reader: Reader, path: str, sender: str) -> dict[str, float]:
    """Mean of each stage of the messages of a sender, in microseconds; `path` is "link" or "anchor"."""
    messages = [
        each for each in reader.lines(f"results/trace/{path}/messages.jsonl") if each["from"] == sender
    ]
    return {stage: sum(each[stage] for each in messages) / len(messages) / 1000 for stage in STAGES}


def _datagrams(values: Values) -> None:
    """The library's ratios to kernel UDP, and medians of the rounds of each."""
    sizes = (("64", "datagrams", 0), ("60000", "datagrams", 3), ("64.busy", "datagrams-busy2", 0))
    for name, file, index in sizes:
        record, at = f"results/{file}.json", f"sizes.{index}"
        for figure, key in (("packets", "packets_ratio"), ("trip", "round_trip_ratio")):
            for part in ("median", "min", "max"):
                values.number(f"udp{name}.{figure}.{part}", record, f"{at}.library.{key}.{part}")
        for path, key in (("kernel", "udp"), ("library", "library")):
            rounds = f"{at}.{key}.rounds"
            values.middle(f"udp{name}.{path}.lost", record, rounds, "lost", percent)
            values.middle(f"udp{name}.{path}.trip", record, rounds, "round_trip_us.mean", micro)


def _stages(values: Values) -> None:
    request = "redis-benchmark"
    for path in ("link", "anchor"):

        def total(path: str = path) -> str:
            return plain(sum(stages(values.reader, path, request).values()))

        values.add(f"trace.{path}", total)

    def own() -> str:
        found = stages(values.reader, "link", request)
        return plain(sum(found[stage] for stage in ("call", "copy", "post", "wire", "read")))

    values.add("trace.link.own", own)


RXE = "results/rxe/figures/meta.json"
RSTREAM = "results/rxe/rstream/meta.json"
POLLED = "results/rxe/polled/meta.json"


def turns(reader: Reader, record: str, key: str, figure: str) -> list[float]:
    """The figure of each turn."""
    return [float(each[figure]) for each in reader.any(record, key)]


def _two_hosts(values: Values) -> None:
    def ratios(figure: str) -> list[float]:
        ours, theirs = (
            turns(values.reader, RSTREAM, f"figures.{stack}.rstream_turns", figure)
            for stack in ("netacc", "rsockets")
        )
        return [a / b for a, b in zip(ours, theirs, strict=True)]

    for figure in ("messages_per_s", "gbit_per_s"):
        for name, pick in (("min", min), ("median", median), ("max", max)):

            def ratio(figure: str = figure, pick: Callable[[list[float]], float] = pick) -> str:
                return plain(pick(ratios(figure)))

            values.add(f"rstream.ratio.{figure.split('_')[0]}.{name}", ratio)

    def polled(part: str) -> float:
        ours = median(turns(values.reader, POLLED, "figures.turns.stack", part))
        return ours / median(turns(values.reader, POLLED, "figures.turns.ib_send_lat", part))

    for part in ("p50_us", "p99_us"):

        def over(part: str = part) -> str:
            return plain(polled(part))

        values.add(f"polled.{part.removesuffix('_us')}", over)


#: Rows of the table of failures.
FAILURES = {
    "removed": "the device is removed",
    "error": "the queue pair is put into error",
    "firewall": "a firewall drops the device's packets alone",
    "down": "the interface is down",
    "both": "both interfaces are down",
    "killed": "the peer is killed",
    "lossy": "one packet of twenty is lost",
}


def _erdma(values: Values) -> None:
    for name in ("redis", "redis-40000"):
        record = f"{ERDMA}/{name}.json"
        values.number(f"erdma.{name}.per-second", record, "rounds.redis.netacc.0.set_per_s", whole)
        values.number(f"erdma.{name}.rate", record, "ratio_to_tcp.redis.netacc.set_per_s.0")
        values.number(f"erdma.{name}.cpu", record, "ratio_to_tcp.redis.netacc.server_cpu_us.0")
        values.number(f"erdma.{name}.link", record, "rounds.redis.netacc.0.link_share", percent)
    trips = f"{ERDMA}/round-trips.json"
    values.number("erdma.trips.cpu", trips, "ratio_to_tcp.trips.netacc.server_us.0")
    values.number("erdma.trips.p50", trips, "ratio_to_tcp.trips.netacc.p50_us.0")
    for name, key in (
        ("tcp", "polled.tcp"), ("rsockets", "polled.rsockets"), ("ours", "polled.netacc"),
        ("raw", "ib_send_lat.verbs"),
    ):  # fmt: skip
        values.number(f"erdma.polled.{name}", trips, f"rounds.{key}.0.p50_us", whole)

    stream = f"{ERDMA}/stream.json"

    def faster(stack: str) -> str:
        rounds = values.reader.number(stream, "rounds.stream.tcp.0.us")
        return plain(rounds / values.reader.number(stream, f"rounds.stream.{stack}.0.us"))

    values.add("erdma.stream.ours", lambda: faster("netacc"))
    values.add("erdma.stream.rsockets", lambda: faster("rsockets"))
    values.said(
        "erdma.before", f"{ERDMA}/README.md",
        r"there were (\d+) SET per second; the server needed \d+ us for each",
    )  # fmt: skip
    values.said(
        "erdma.pyverbs.pass erdma.pyverbs.skip erdma.pyverbs.fail", f"{ERDMA}/README.md",
        r"one host \| (\d+) pass, (\d+) are skipped, (\d+) fail",
    )  # fmt: skip
    values.said(
        "erdma.load.low erdma.load.high erdma.block", f"{ERDMA}/README.md",
        r"with a load of (\d+) to (\d+) on its two processors, once each; blocks took up to ([\d.]+) s",
    )  # fmt: skip


#: Rows of the table of faults of an emulated eRDMA function.
ERDMA_FAULTS = {
    "event": "event: access error",
    "early": "SENDs complete early",
    "retry": "RETRY_EXC after 1 s",
    "silent": "a function sends nothing",
    "lost": "1 interrupt of each function is lost",
    "refused": "CREATE_QP is refused",
}

SIMULATION = "paper/records/simulation.json"
MEASURED = "paper/records/measured.json"
CLOSED = ("serialisation", "bandwidth_delay", "queueing", "dcqcn_fixed_point", "links")


def error(row: dict[str, float]) -> float:
    """How far simulation is off, as a share of what is known."""
    return row["simulated"] / row["expected"] - 1


def _simulated(values: Values) -> None:
    def worst(checks: tuple[str, ...]) -> str:
        rows = [row for check in checks for row in values.reader.any(SIMULATION, f"checks.{check}")]
        return percent(max(abs(error(row)) for row in rows if not row["bound"]))

    values.add("sim.closed.worst", lambda: worst(CLOSED))
    values.add("sim.closed.rows", lambda: whole(sum(
        len(values.reader.any(SIMULATION, f"checks.{check}")) for check in CLOSED
    )))  # fmt: skip
    for name, check, what in SIMULATED:

        def off(check: str = check, what: str = what) -> str:
            row = values.reader.chosen(SIMULATION, f"checks.{check}", what=what)
            return f"{error(row) * 100:+.0f} %".replace("-", "\N{MINUS SIGN}")

        def known(check: str = check, what: str = what) -> str:
            return figure(values.reader.chosen(SIMULATION, f"checks.{check}", what=what)["expected"])

        def seen(check: str = check, what: str = what) -> str:
            return figure(values.reader.chosen(SIMULATION, f"checks.{check}", what=what)["simulated"])

        def size(check: str = check, what: str = what) -> str:
            row = values.reader.chosen(SIMULATION, f"checks.{check}", what=what)
            return f"{abs(error(row)) * 100:.0f} %"

        values.add(f"sim.{name}.error", off)
        values.add(f"sim.{name}.size", size)
        values.add(f"sim.{name}.known", known)
        values.add(f"sim.{name}.seen", seen)
    busy = "processors that other work kept busy"
    values.add("here.busy", lambda: plain(
        values.reader.chosen(MEASURED, "checks.redis_here", what=busy)["simulated"]
    ))  # fmt: skip

    def rates() -> list[float]:
        rows = values.reader.any(MEASURED, "checks.redis_here")
        return [error(row) + 1 for row in rows if row["what"].endswith(": rate")]

    values.add("here.least", lambda: plain(min(rates())))
    values.add("here.most", lambda: plain(max(rates())))
    values.add("guide.ratio", lambda: plain(
        values.reader.chosen(SIMULATION, "checks.redis", what="netacc: rate")["expected"]
        / values.reader.chosen(SIMULATION, "checks.redis", what="kernel-tcp: rate")["expected"]
    ))  # fmt: skip


#: Figures of simulation that the text names: a short name, the check, the row.
SIMULATED = (
    ("guide.tcp.rate", "redis", "kernel-tcp: rate"),
    ("guide.rate", "redis", "netacc: rate"),
    ("guide.tcp.p50", "redis", "kernel-tcp: p50"),
    ("guide.p50", "redis", "netacc: p50"),
    ("guide.p95", "redis", "netacc: p95"),
    ("guide.p99", "redis", "netacc: p99"),
    ("guide.tcp.p99", "redis", "kernel-tcp: p99"),
    ("gazelle.rate", "gazelle", "gazelle-like set: rate"),
    ("gazelle.p50", "gazelle", "gazelle-like set: p50"),
    ("gazelle.tcp.p99", "gazelle", "kernel-tcp set: p99"),
    ("udpdk.128", "udpdk", "udpdk-like 128 B"),
    ("udpdk.kernel.256", "udpdk", "kernel 256 B"),
    ("udpdk.kernel.latency", "udpdk", "kernel mean latency"),
    ("set", "deployment_set", "in the set"),
    ("set.outside", "deployment_set", "outside"),
    ("dcqcn.8", "dcqcn_many_flows", "8 flows, all marked from 200 kB on"),
)
