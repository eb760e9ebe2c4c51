"""Rate controls against what their papers state, in ns-3.

Each row names the place in the paper. All figures are predicted: parameters are the papers', or those that
the function names, and nothing is fitted. Figures of testbeds and of production, whose inputs are not
published (the queues of DCQCN's incasts, TIMELY's and Swift's round trips, which include hosts), are not
compared. The checks compare the papers' statements in words.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.sim.rows import Row, simulate

MTU = 1000
#: A packet of data on the wire, and its acknowledgement: Ethernet, IP, UDP and InfiniBand's headers.
FRAME, ACK = MTU + 82, 86
#: Rings that hold more than any control lets be in flight.
STACK: dict[str, dict[str, Any]] = {
    "stack": {"anchor": "memory"},
    "stack__nacc": {"NACC_RING_SIZE": 1 << 22, "NACC_SOR_MSG_SIZE": 1 << 17},
}


@dataclass(frozen=True)
class Seen:
    """A run: what waited at the bottleneck, and what each sender sent."""

    #: Nanoseconds, bytes that wait, bytes sent so far: of the switch's port to the receiver.
    port: list[tuple[int, int, int]]
    #: Nanoseconds, and bytes sent so far, of each sender.
    senders: list[list[tuple[int, int]]]
    #: Pauses of the whole network.
    pauses: int

    def queue(self, begin_us: int, end_us: int) -> list[int]:
        """Bytes that wait at each observation of a span."""
        return [queue for at, queue, _ in self.port if begin_us * 1000 < at <= end_us * 1000]

    def rate(self, begin_us: int, end_us: int) -> float:
        """Bits that the bottleneck sends in a second of a span."""
        return _rate([(at, sent) for at, _, sent in self.port], begin_us, end_us)

    def rates(self, begin_us: int, end_us: int) -> list[float]:
        """The same of each sender."""
        return [_rate(sent, begin_us, end_us) for sent in self.senders]


def _rate(sent: list[tuple[int, int]], begin_us: int, end_us: int) -> float:
    span = [each for each in sent if begin_us * 1000 <= each[0] <= end_us * 1000]
    (first, before), (last, after) = span[0], span[-1]
    return (after - before) * 8 / ((last - first) * 1e-9)


def fairness(rates: list[float]) -> float:
    """Jain's index: 1 where all have the same."""
    return sum(rates) ** 2 / (len(rates) * sum(rate**2 for rate in rates))


def endless(senders: int) -> dict[str, Any]:
    """A workload: writes that never end, from hosts of their own to one receiver."""
    return {
        "name": "writes",
        "kind": "verbs",
        "clients": senders,
        "connections": senders,
        "request": "64000B",
        "depth": 8,
    }


def joining(folder: Path, flows: list[tuple[int, int, int]]) -> dict[str, Any]:
    """A workload: flows to host 0, each from a host, at a time in microseconds, of so many bytes."""
    lines = [f"{host} 0 3 100 {size} {start / 1e6:.6f}" for host, start, size in flows]
    (folder / "flows.txt").write_text("\n".join([str(len(lines)), *lines]) + "\n")
    return {"name": "flows", "kind": "flows", "flows": "flows.txt"}


def run(
    folder: Path,
    workload: dict[str, Any],
    *,
    topology: dict[str, Any],
    device: dict[str, Any],
    switch: dict[str, Any],
    span: tuple[str, str],
) -> Seen:
    """Hosts around a switch, or on a graph, for a duration, observed at an interval. Host 0 receives."""
    duration, interval = span
    # Verbs have no stack.
    stack: dict[str, dict[str, Any]] = STACK if workload["kind"] == "flows" else {}
    point = simulate(
        folder,
        topology=topology,
        topology__switch={"port-buffer": "1GiB", **switch},
        device={"profile": "ideal", "mtu": f"{MTU}B", **device},
        **stack,
        workload=[workload],
        measure={
            "warmup": "0s",
            "duration": duration,
            "drain": "0s",
            "samples": False,
            "seeds": [1],
            "ports": True,
            "progress": interval,
        },
    )
    (made,) = point.runs
    port, senders = [], {host: list[tuple[int, int]]() for host in range(1, int(topology["hosts"]))}
    with (made.folder / "ports.csv").open() as lines:
        next(lines)
        for line in lines:
            at, _, node, peer, queue, sent, *_ = line.split(",")
            if peer == "0":
                port.append((int(at), int(queue), int(sent)))
            elif int(node) in senders:
                senders[int(node)].append((int(at), int(sent)))
    return Seen(port, list(senders.values()), int(made.meta["network"]["pauses"]))


#: As deployed (DCQCN, section 5.2, figure 14), and as the papers of DCTCP and QCN suggest ("strawman" there).
DEPLOYED = {"ecn": True, "ecn-min": "5kB", "ecn-max": "200kB", "ecn-probability": "1%"}
STRAWMAN = {"ecn": True, "ecn-min": "40kB", "ecn-max": "40kB", "ecn-probability": "100%"}
STRAWMAN_DEVICE = {"dcqcn-increase": "150kB", "dcqcn-increase-interval": "1500us", "dcqcn-gain-shift": 4}


def dcqcn_paper(folder: Path) -> list[Row]:
    """DCQCN (Zhu et al., SIGCOMM 2015): parameters that converge and that do not, and PFC's unfairness."""

    def apart(switch: dict[str, Any], device: dict[str, Any]) -> float:
        # A flow joins another that has the link; each has more to send than the run lasts.
        seen = run(
            folder,
            joining(folder, [(1, 0, 10**9), (2, 10_000, 10**9)]),
            topology={"kind": "star", "hosts": 3, "rate": "40Gbit/s", "delay": "1us"},
            device={"rate-control": "dcqcn-paper", **device},
            switch=switch,
            span=("150ms", "200us"),
        )
        pairs = [seen.rates(at, at + 1000) for at in range(130_000, 150_000, 1000)]
        return sum(abs(one - other) for one, other in pairs) / len(pairs) / 1e9

    links = [("host:0", "switch:1"), *((f"host:{host}", "switch:0") for host in (1, 2, 3))]
    links += [("host:4", "switch:1"), ("switch:0", "switch:1")]
    # Hosts 1 to 3 share the way to the receiver's switch, host 4 is on it.
    graph = {
        "kind": "graph",
        "hosts": 5,
        "switches": 2,
        "rate": "40Gbit/s",
        "delay": "1us",
        "link": [{"ends": list(ends)} for ends in links],
    }
    pfc = run(folder, endless(4), topology=graph, device={}, switch={"pfc": True}, span=("20ms", "100us"))
    dcqcn = run(
        folder,
        endless(4),
        topology=graph,
        device={"rate-control": "dcqcn-paper"},
        switch={"pfc": True, **DEPLOYED},
        span=("60ms", "100us"),
    )
    alone, controlled = pfc.rates(10_000, 20_000), dcqcn.rates(20_000, 60_000)
    far = sum(alone[:3]) / 3
    used = dcqcn.rate(20_000, 60_000) / 40e9
    return [
        Row(
            "5.2: two flows converge with the deployed parameters: apart",
            4,
            apart(DEPLOYED, {}),
            "Gbit/s",
            0,
            bound="most",
        ),
        # They do not converge: from equal shares they go to all and nothing.
        Row(
            "5.2: they do not with strawman parameters: apart",
            20,
            apart(STRAWMAN, STRAWMAN_DEVICE),
            "Gbit/s",
            0,
            bound="least",
        ),
        Row(
            "2.2, fig. 3: PFC alone shares by port: flow of another port", 20, alone[3] / 1e9, "Gbit/s", 0.02
        ),
        Row("2.2, fig. 3: PFC alone: each of three that share a port", 20 / 3, far / 1e9, "Gbit/s", 0.02),
        Row("fig. 8: with DCQCN all four are equal (Jain)", 1, fairness(controlled), "", 0.02),
        Row("fig. 8: use of the link", 1, used, "", 0.02),
        Row("pauses in 60 ms, against PFC's in 20 ms", pfc.pauses, dcqcn.pauses, "", 0, bound="most"),
    ]


def timely_paper(folder: Path) -> list[Row]:
    """TIMELY (Mittal et al., SIGCOMM 2015): ten senders, with PFC alone and with TIMELY, and patched."""
    senders, rate = 10, 10e9

    def seen(device: dict[str, Any], duration_us: int) -> Seen:
        # PFC lets 10 times 100 kB wait.
        return run(
            folder,
            endless(senders),
            topology={"kind": "star", "hosts": senders + 1, "rate": "10Gbit/s", "delay": "1us"},
            device=device,
            switch={"pfc": True, "pfc-xoff": "100kB"},
            span=(f"{duration_us}us", "50us"),
        )

    def wait_us(queue: list[int], share: float) -> float:
        return sorted(queue)[int(share * len(queue))] * 8 / rate * 1e6

    pfc = seen({}, 20_000)
    timely = seen({"rate-control": "timely"}, 200_000)
    # beta is smaller, as the patch demands.
    patched = seen({"rate-control": "timely", "timely-patched": True, "timely-decrease": "0.8%"}, 200_000)
    tail = [wait_us(pfc.queue(10_000, 20_000), 0.99), wait_us(timely.queue(50_000, 100_000), 0.99)]
    share = timely.rate(50_000, 100_000) / pfc.rate(10_000, 20_000)
    step, beta, low_us = 10e6, 0.008, 50.0
    empty_us = (2 * (FRAME + ACK) * 8 / rate + 4e-6) * 1e6
    fixed = low_us * (1 + senders * step / (beta * rate))
    settled = patched.queue(150_000, 200_000)
    round_trip = sum(settled) / len(settled) * 8 / rate * 1e6 + empty_us
    longest = max(timely.queue(50_000, 200_000)) * 8 / rate * 1e6 + empty_us
    return [
        Row(
            "abstract: 99th percentile of waits, times lower than PFC's",
            9,
            tail[0] / tail[1],
            "",
            0,
            bound="least",
        ),
        # No figure of this load is published. The bound is this check's.
        Row("abstract: near line rate, of PFC's throughput", 0.85, share, "", 0, bound="least"),
        Row("algorithm 1: no round trip above T_high", 500, longest, "us", 0, bound="most"),
        # CoNEXT 2016, section 4: any shares may remain.
        Row(
            "CoNEXT 2016, 4: shares are arbitrary (Jain)",
            1,
            fairness(timely.rates(150_000, 200_000)),
            "",
            None,
        ),
        Row(
            "CoNEXT 2016, 4: patched, equal shares (Jain)",
            1,
            fairness(patched.rates(150_000, 200_000)),
            "",
            0.01,
        ),
        Row("CoNEXT 2016, 4: patched, round trip", fixed, round_trip, "us", 0.01),
    ]


def hpcc_paper(folder: Path) -> list[Row]:
    """HPCC (Li et al., SIGCOMM 2019): an incast of 16, its rule for W_AI, and flows that join."""
    rate, senders = 100e9, 16

    def seen(
        workload: dict[str, Any], hosts: int, delay_us: int, additive: float, span: tuple[str, str]
    ) -> Seen:
        # Twice through two links, with telemetry in packets and acknowledgements: 4.2 and 40.2 us.
        return run(
            folder,
            workload,
            topology={"kind": "star", "hosts": hosts, "rate": "100Gbit/s", "delay": f"{delay_us}us"},
            device={
                "rate-control": "hpcc",
                "hpcc-base-round-trip": f"{4 * delay_us}200ns",
                "hpcc-additive": f"{additive / 1e6}Mbit/s",
                "hpcc-min": "100Mbit/s",
                "ack-interval": 1,
                "max-in-flight": 8192,
            },
            switch={},
            span=span,
        )

    # W_AI = W_init (1 - eta) / N, as a rate.
    rule = 0.05 * rate / senders
    burst = seen(endless(senders), senders + 1, 1, rule, ("1ms", "2us"))
    window = 4.2e-6 * rate / 8
    peak = max(burst.queue(0, 1000))
    after = burst.queue(0, 60)
    drained = (after[10] - after[-1]) * 8 / (2e-6 * (len(after) - 11))
    rows = [
        Row(
            "3: windows bound what waits of an incast of 16: in windows",
            senders * FRAME / MTU,
            peak / window,
            "",
            0,
            bound="most",
        ),
        Row("3: it drains from the second round trip on, of the line rate", 1, drained / rate, "", 0.03),
        Row(
            "abstract: near-zero queues, 0.5 ms later, mean in windows",
            0.1,
            _mean(burst.queue(500, 1000)) / window,
            "",
            0,
            bound="most",
        ),
    ]
    window = 40.2e-6 * rate / 8
    for times in (0.5, 4):
        found = seen(endless(senders), senders + 1, 10, times * rule, ("10ms", "5us"))
        expected = 0.95 + 0.05 * times
        queue = _mean(found.queue(5000, 10_000))
        what = f"3.3: W_AI {times} times the rule's"
        rows.append(
            Row(f"{what}: use of the link", min(expected, 1.0), found.rate(5000, 10_000) / rate, "", 0.01)
        )
        if expected < 1:
            rows.append(Row(f"{what}: queue in windows", 0.01, queue / window, "", 0, bound="most"))
        else:
            # Windows are rounded up to packets, of which each has half a one more.
            rounded = senders * FRAME / 2
            rows.append(
                Row(
                    f"{what}: queue in kB", ((expected - 1) * window + rounded) / 1e3, queue / 1e3, "kB", 0.15
                )
            )
    joins = seen(
        joining(folder, [(host, 2000 * (host - 1), 10**9) for host in range(1, 5)]),
        5,
        1,
        rule,
        ("8ms", "2us"),
    )
    for flows in range(1, 5):
        begin, end = 2000 * (flows - 1), 2000 * flows
        if flows > 1:
            equal = fairness(joins.rates(begin + 1000, end)[:flows])
            rows.append(
                Row(f"fig. 9: {flows} flows that joined one by one: equal shares", 1, equal, "", 0.02)
            )
        queue = max(joins.queue(begin + 100, end))
        rows.append(
            Row(
                f"fig. 9: with {flows}: most that waits, in windows",
                0.1,
                queue / (4.2e-6 * rate / 8),
                "",
                0,
                bound="most",
            )
        )
    return rows


def _mean(values: list[int]) -> float:
    return sum(values) / len(values)


def swift_paper(folder: Path) -> list[Row]:
    """Swift (Kumar et al., SIGCOMM 2020): round trips stay near the target from 1 to 1,000 flows."""
    rate, base_us = 100e9, 25.0
    empty_us = (2 * (FRAME + ACK) * 8 / rate + 8e-6) * 1e6

    def seen(flows: int, range_us: int) -> tuple[float, float, float]:
        device: dict[str, Any] = {
            "rate-control": "swift",
            "swift-target": f"{base_us}us",
            "swift-scaling-range": f"{range_us}us",
            # One flow alone needs 97 packets; all of many begin with their greatest window.
            "swift-max-window": max(4, 512 // flows),
            "ack-interval": 1,
            "max-in-flight": 1024,
            "retry-timeout": "500ms",
        }
        found = run(
            folder,
            endless(flows),
            topology={"kind": "star", "hosts": flows + 1, "rate": "100Gbit/s", "delay": "2us"},
            device=device,
            switch={},
            span=("12ms", "100us"),
        )
        queue = _mean(found.queue(6000, 12_000))
        equal = fairness(found.rates(6000, 12_000))
        return empty_us + queue * 8 / rate * 1e6, found.rate(6000, 12_000) / rate, equal

    def target(flows: int, range_us: int) -> float:
        # Where all windows together fill it (section 3.5, with fs_min_cwnd 0.1 and fs_max_cwnd 100).
        alpha = range_us / (0.1**-0.5 - 100**-0.5)
        found = base_us
        for _ in range(100):
            window = found * 1e-6 * rate / 8 / FRAME / flows
            found = base_us + min(max(alpha * (window**-0.5 - 0.1), 0.0), range_us)
        return found

    rows = []
    for flows in (1, 10, 100, 1000):
        round_trip, used, _ = seen(flows, 100)
        what = f"3.5: flows: {flows:,}"
        # One flow has at most 512 packets, more than the path holds: its round trip is below the target.
        bound = "most" if flows == 1 else ""
        rows.append(Row(f"{what}: round trip", target(flows, 100), round_trip, "us", 0.1, bound=bound))
        rows.append(Row(f"{what}: use of the link", 1, used, "", 0.02))
    plain, scaled = seen(1000, 0), seen(1000, 100)
    rows.append(Row("3.5: 1,000 flows, without scaling: round trip", base_us, plain[0], "us", None))
    rows.append(
        Row("3.5: scaling makes 1,000 flows fairer (Jain)", plain[2], scaled[2], "", 0, bound="least")
    )
    return rows


#: The checks of this module.
CHECKS = (dcqcn_paper, timely_paper, hpcc_paper, swift_paper)
