"""Generated programs of UDP calls in two processes answer as on the kernel's sockets.

Only what UDP leaves open may differ: the order of datagrams from different sockets. So the test
compares the datagrams of a socket by their source.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties.datagram_world import Step, World, all_counts, difference

SOCKETS = 3
KINDS = ["bound", "any", "dual", "six"]
WANTS = ["destination", "lifetime", "service", "micros", "nanos", "times", "drops"]
#: Of the datagrams of `test_what_is_told`, in two programs of some 260.
LINKED = 260
#: Each is seen alone, as one may have the effect of another.
CHANGES = [("lifetime", 200), ("service", 4), ("split", 100)]
#: A difference that does not come back is one of timing: the way of a datagram depends on who sleeps.
RUNS = 3
#: Of the datagrams of all programs: many are too few for a flow.
SHARE = 0.2


def programs(between_hosts: bool = False) -> st.SearchStrategy[tuple[list[str], list[Step]]]:
    """Between hosts no answer depends on the order of datagrams, or on whether an error has come."""
    index = st.integers(0, SOCKETS - 1)
    length = st.sampled_from([0, 1, 7, 8, 64, 1000, 3000])
    others_ip = [] if between_hosts else ["127.0.0.2"]
    ip = st.sampled_from(["127.0.0.1", "127.0.0.1", *others_ip])
    send = st.tuples(
        st.just("send"),
        index,
        index,
        length,
        st.sampled_from(["sendto", "parts", "marked", "lived", "split", "send"]),
        ip,
    )
    hows = ["whole", "peek"] if between_hosts else ["whole", "whole", "short", "peek"]
    receive = st.tuples(st.just("receive"), index, st.sampled_from(hows))
    several = [] if between_hosts else [["127.0.0.2"], ["127.0.0.1", "127.0.0.2"]]
    addresses = st.sampled_from([["127.0.0.1"], *several])
    warm = st.tuples(st.just("warm"), index, index, addresses)
    inform = st.tuples(st.just("inform"), index, st.sampled_from(WANTS), st.booleans())
    option = st.one_of(
        st.tuples(
            st.just("option"), index, st.sampled_from(["lifetime", "service"]), st.sampled_from([4, 200])
        ),
        st.tuples(st.just("option"), index, st.just("split"), st.sampled_from([0, 7, 100, 1400])),
        st.tuples(st.just("option"), index, st.just("join"), st.just(1)),
    )
    anywhere = [
        st.tuples(st.just("wait"), index, st.sampled_from(["poll", "epoll", "select"])),
        inform,
        option,
        st.tuples(st.just("duplicate"), index),
        st.tuples(st.just("fork"), index, st.sampled_from(["ends", "receives"])),
    ]
    # Only within a host do both ends know at once that a flow was refused, or has ended.
    here = [
        st.tuples(st.just("connect"), index, index),
        st.tuples(st.just("reopen"), index, st.sampled_from(KINDS)),
        st.tuples(st.just("fork"), index, st.just("goes on")),
        st.tuples(st.just("shut"), index, st.integers(0, 2)),
    ]
    others = st.one_of(anywhere if between_hosts else [*anywhere, *here])
    # Flows first, or what is done to sockets without any is all that is tried.
    begun = st.tuples(st.lists(st.one_of(inform, option), max_size=3), st.lists(warm, max_size=3))
    steps = st.lists(st.one_of(send, send, send, receive, receive, warm, others), max_size=30)
    kinds = st.lists(st.sampled_from(KINDS), min_size=SOCKETS, max_size=SOCKETS)
    return st.tuples(kinds, st.tuples(begun, steps).map(lambda both: [*both[0][0], *both[0][1], *both[1]]))


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, World]]:
    counted = [tmp_path_factory.mktemp("worlds") / "counted" for _ in range(2)]
    both = [World.here(accelerated, counted) for accelerated in (False, True)]
    yield both[0], both[1]
    for world in both:
        world.end()
    counts = [counts for file in counted for counts in all_counts(file)]
    link, kernel = (sum(count[f"datagrams_received_{way}"] for count in counts) for way in ("link", "kernel"))
    assert link >= SHARE * (link + kernel), (link, kernel)


@given(program=programs())
def test_as_the_kernels(worlds: tuple[World, World], program: tuple[list[str], list[Step]]) -> None:
    """Breaks if a datagram is lost, doubled, changed or overtaken, or a call answers otherwise."""
    for _ in range(RUNS):
        found = difference(*(world.run(*program) for world in worlds))
        if found is None:
            return
    pytest.fail(f"{found}\nprogram: {program}")


#: A flow that is made anew for another address of the same socket. Breaks if sends by the kernel are
#: counted at their end alone while the new ring seems to be closed: its datagrams are never due.
ANEW: list[Step] = [
    ("warm", 0, 1, ["127.0.0.2"]),
    ("connect", 0, 2),
    ("send", 0, 1, 64, "sendto", "127.0.0.1"),
    ("warm", 0, 1, ["127.0.0.1"]),
]


def test_a_flow_that_is_made_anew(worlds: tuple[World, World]) -> None:
    for _ in range(10):
        assert difference(*(world.run(["dual", "dual", "bound"], ANEW) for world in worlds)) is None


def told(what: str) -> list[Step]:
    """A program whose second socket wants to know something of each datagram, which differs between them."""
    steps: list[Step] = [("inform", 1, what, True)] if what in WANTS else [("option", 1, what, 1)]
    steps.append(("warm", 0, 1, ["127.0.0.1"]))
    changes: list[list[Step]] = [[], *([("option", 0, *one)] for one in CHANGES)]
    for change in changes:
        steps += change
        for how, length in [("sendto", 150), ("lived", 8), ("marked", 8), ("split", 1000)]:
            # The first wakes a sleeper, and takes the kernel.
            steps += 3 * [("send", 0, 1, length, how, "127.0.0.1")] + [
                ("receive", 1, "short"),
                ("drained", 1),
            ]
    return steps


@pytest.mark.parametrize("what", [*WANTS, "join"])
def test_what_is_told(what: str, tmp_path: Path) -> None:
    """Breaks if an option keeps datagrams in the kernel, or a ring says something else of them."""
    counted = [tmp_path / f"counted-{i}" for i in range(2)]
    both = [World.here(accelerated, counted) for accelerated in (False, True)]
    for kind in ("bound", "six"):
        # A busy kernel begins to take times some time after it was asked to.
        found = [difference(*(world.run([kind] * 2, told(what)) for world in both))]
        while found[-1] is not None and len(found) < RUNS:
            found.append(difference(*(world.run([kind] * 2, told(what)) for world in both)))
        assert found[-1] is None, found
    for world in both:
        world.end()
    counts = [counts for file in counted if file.exists() for counts in all_counts(file)]
    link = sum(count["datagrams_received_link"] for count in counts)
    assert link >= LINKED, link
