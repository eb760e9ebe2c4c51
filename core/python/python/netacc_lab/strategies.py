"""Strategies for Hypothesis.

A program is drawn as its shape and a list of numbers, one decision each, so that Hypothesis can leave
decisions out and make them plainer while it shrinks; every draw is a sound program.
"""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from netacc_lab.program import Config, Mix, Program, Shape, generate

DECISION_BITS = 56  # more than any decision takes apart


class Profile(enum.Enum):
    """How much is drawn. Hypothesis has profiles of the same names for how often."""

    FAST = "fast"
    BALANCED = "balanced"
    EXPENSIVE = "expensive"

    @property
    def decisions(self) -> int:
        return {Profile.FAST: 30, Profile.BALANCED: 60, Profile.EXPENSIVE: 200}[self]

    @property
    def connections(self) -> int:
        return {Profile.FAST: 2, Profile.BALANCED: 4, Profile.EXPENSIVE: 8}[self]

    @property
    def most_bytes(self) -> tuple[int, ...]:
        return {
            Profile.FAST: (100, 2000),
            Profile.BALANCED: (100, 2000, 8000),
            Profile.EXPENSIVE: (100, 2000, 8000, 60000),
        }[self]


# Each is a process tree of its own for executors of real processes, so there are few.
CONFIGS = (
    Config(),
    Config(ring_bytes=4096),
    Config(conn_per_qp=8, ring_bytes=16384),
    Config(promote_after=3, ring_bytes=262144),
    Config(conn_per_qp=64, promote_after=1, ring_bytes=65536),
)
FAR_CONFIGS = (CONFIGS[0], CONFIGS[2])


@st.composite
def shapes(draw: st.DrawFn, profile: Profile = Profile.FAST, mixes: tuple[Mix, ...] = tuple(Mix)) -> Shape:
    """Frames of programs: processes, hosts, connections, operations, settings of the library."""
    return Shape(
        processes=draw(st.integers(1, 4)),
        hosts=draw(st.integers(1, 2)),
        connections=draw(st.integers(1, profile.connections)),
        mix=draw(st.sampled_from(mixes)),
        warm=draw(st.sampled_from((12, 0))),
        most_bytes=draw(st.sampled_from(profile.most_bytes)),
        threads=draw(st.booleans()),
        config=draw(st.sampled_from(CONFIGS)),
    )


def decisions(profile: Profile = Profile.FAST) -> st.SearchStrategy[list[int]]:
    """Lists of decisions."""
    return st.lists(st.integers(0, 2**DECISION_BITS - 1), max_size=profile.decisions)


def programs(
    profile: Profile = Profile.FAST, mixes: tuple[Mix, ...] = tuple(Mix)
) -> st.SearchStrategy[Program]:
    """Sound programs."""
    return st.builds(generate, shapes(profile, mixes), decisions(profile))


@dataclass(frozen=True)
class Draw:
    """A program together with its shape and decisions."""

    seed: int
    shape: Shape
    decisions: tuple[int, ...]

    @property
    def program(self) -> Program:
        return generate(self.shape, self.decisions)


def across_hosts(seed: int, profile: Profile = Profile.FAST, mixes: tuple[Mix, ...] = tuple(Mix)) -> Draw:
    """The same for two machines: a process on each at least, and few settings of the library."""
    draw = from_seed(seed, profile, mixes)
    rng = random.Random(f"hosts/{profile.value}/{seed}")
    shape = replace(
        draw.shape,
        processes=rng.choice((2, 2, 2, 3, 4)),
        hosts=2,
        warm=rng.choice((0, 12, 12, 12, 12, 12)),
        config=rng.choice(FAR_CONFIGS),
    )
    return replace(draw, shape=shape)


def from_seed(seed: int, profile: Profile = Profile.FAST, mixes: tuple[Mix, ...] = tuple(Mix)) -> Draw:
    """Much the same from a seed, without Hypothesis, whose bookkeeping is most of the time of a long run."""
    rng = random.Random(f"{profile.value}/{seed}")
    shape = Shape(
        processes=rng.choice((1, 1, 2, 2, 2, 3, 4)),
        hosts=rng.randint(1, 2),
        connections=rng.randint(1, profile.connections),
        mix=rng.choice(mixes),
        warm=rng.choice((0, 12, 12)),
        most_bytes=rng.choice(profile.most_bytes),
        threads=rng.random() < 0.7,
        config=rng.choice(CONFIGS),
    )
    length = rng.randint(1, profile.decisions)
    return Draw(seed, shape, tuple(rng.getrandbits(DECISION_BITS) for _ in range(length)))
