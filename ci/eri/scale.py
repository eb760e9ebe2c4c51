"""How much each step measures: in full, or on emulated machines much less. Each step records its counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from ci.eri.programs import Comparison, Size


@dataclass(frozen=True)
class Scale:
    """The counts of the steps."""

    #: Of the programs of `figures`.
    size: Size = field(default_factory=Size)
    #: Of `redis`, and how often each of its stacks is measured.
    comparison: Comparison = field(default_factory=Comparison)
    redis_rounds: int = 3
    #: Of `latency`: of each size with `ib_write_lat -a`, of 64 bytes with other tools, and of `netacc lat`
    #: on each path.
    all_sizes_round_trips: int = 1000
    all_sizes_seconds: int = 300
    perftest_round_trips: int = 1000
    lat_round_trips: int = 10_000
    #: Of `polled`, and the round trips of each turn.
    turns: int = 7
    polled_round_trips: int = 3000
    #: How often `figures` runs rstream on each stack, and its round trips each time.
    rstream_turns: int = 5
    rstream_round_trips: int = 1000
    #: The interval at which counters are read, of which the last before the end of a process count.
    watch_seconds: float = 1.5

    @staticmethod
    def emulated() -> Scale:
        """For machines in emulation, of which one has a processor for its programs and its device.

        The whole kit takes 15 to 20 minutes there. In full, `ib_write_lat -a` alone takes an hour.
        """
        return Scale(
            size=Size.small(),
            comparison=Comparison.small(),
            redis_rounds=2,
            all_sizes_round_trips=5,
            all_sizes_seconds=90,
            perftest_round_trips=200,
            lat_round_trips=500,
            turns=3,
            polled_round_trips=300,
            rstream_turns=2,
            rstream_round_trips=200,
            watch_seconds=5,
        )
