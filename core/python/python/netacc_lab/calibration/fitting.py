"""From measured round trips to costs, by least squares.

The processor time of a request at one end, in the model of `models/host`:

    (2 + asks) call + 2 segment + sleeps (call + sleep) + 2 size copy + max(0, 1 - warm / connections) cold

`asks` and `sleeps` are counted. `warm` is how many connections' states the caches keep. Call and segment
differ only by the asks, so they are told apart badly: the intervals and correlations say how badly.

`sleep` is the processor time of both parts of a wake-up, because each end of a ping-pong wakes the other
one as often as it sleeps. Both parts are measured, by the length of the sleep (`Wakes`), and taken off
before the fit: threads that share a processor, or wake one another soon, have sleeps of a fifth of the usual
costs, and one such ping-pong would decide what a call costs. Only paths without these measurements have
`sleep` fitted. The waker's part passes while the other end wakes up, and what of the sleeper's delays it is
in its wake-up: what is left of half a round trip of one connection, less all other work.

`cold` is left out where the measurements do not tell it from nothing: with few states in the caches it is as
good as a part of each call, and takes the calls' place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import optimize, stats

Array = npt.NDArray[np.float64]

#: The parameters of a fit, as profiles name them.
NAMES = ("system-call", "segment", "sleep", "copy-per-kib", "cold")
#: Connections from which on a measurement shows what displaced states cost. Fewer may all be in the caches.
MANY = 100
#: Of intervals.
CONFIDENCE = 0.95
#: The part of a processor's time that noise may take. Arbitrary: with more, simulated programs hardly run.
MOST_NOISE = 0.5
#: How much a relative error of the mean counts beside one of a share. Arbitrary: enough for a mean
#: within a percent.
MEAN_WEIGHT = 50
#: Sleeps for each request with which a ping-pong mostly sleeps.
MOSTLY = 0.5
#: Bytes of the messages that wake-ups are measured with.
SMALL = 64
#: Calls of a server for one wake and two messages: it reads and writes each, asks twice, and sleeps.
PAIR_CALLS = 7.0
#: Bins of a fitted histogram. Arbitrary: enough for a tail, few enough to read.
BINS = 24


class UnfitError(Exception):
    """Measurements from which nothing can be fitted."""


@dataclass(frozen=True)
class Observation:
    """One end of one measurement: counts for each request, and the processor time of each."""

    what: str
    asks: float
    sleeps: float
    size: int
    cpu_ns: float
    connections: int = 1
    #: Nanoseconds of a request's sleeps by `Wakes.pair_ns`; None where these were not measured.
    pairs_ns: float | None = None

    def counts(self, segments: bool, warm: int) -> Array:
        """How often a request has each cost, where the caches keep the states of so many connections."""
        calls = 2 + self.asks + self.sleeps
        displaced = max(0.0, 1 - warm / self.connections)
        counts = np.array([calls, 2.0 * segments, self.sleeps, 2 * self.size / 1024, displaced])
        return counts if self.pairs_ns is None else counts - self.sleeps * pair(segments)


def pair(segments: bool) -> Array:
    """How often each cost is in the server's time of a wake: it answers two messages, and sleeps."""
    return np.array([PAIR_CALLS, 4.0 * segments, 1.0, 4 * SMALL / 1024, 0.0])


@dataclass(frozen=True)
class Wakes:
    """Wakes after pauses of several lengths, by `netacc bench echo --wakes`; nanoseconds, in this order.

    A sleep lasts from when nothing is left to do until the thread runs again. The shortest ones end before
    the processor is asleep: no interrupt wakes it.
    """

    lengths: list[float]
    #: The server's processor time of a wake: of a sleep, and of two messages.
    servers: list[float]
    #: How much longer the write takes that wakes.
    wakers: list[float]

    def pair_ns(self, idle_ns: float) -> float:
        """Processor time of a sleep of that length, both parts, and of two messages."""
        return sum(self._at(idle_ns))

    def costs(self, idle_ns: float, fit: Fit) -> tuple[float, float]:
        """The sleeper's and the waker's processor time of a sleep of that length."""
        server, waker = self._at(idle_ns)
        segments = "segment" in fit.values
        known = sum(
            count * fit.values.get(name, 0.0)
            for name, count in zip(NAMES, pair(segments), strict=True)
            if name != "sleep"
        )
        return max(server - float(known), 0.0), waker

    def _at(self, idle_ns: float) -> tuple[float, float]:
        return (
            float(np.interp(idle_ns, self.lengths, self.servers)),
            float(np.interp(idle_ns, self.lengths, self.wakers)),
        )


@dataclass(frozen=True)
class Fit:
    """Costs in nanoseconds, with their intervals, correlations, and the residuals."""

    values: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    correlation: list[list[float]]
    residuals: list[tuple[str, float, float]]
    #: Connections whose states the caches keep, and the interval of that; None where no measurement had
    #: many.
    warm: tuple[int, int, int] | None = None

    def identified(self, name: str) -> bool:
        """Whether the measurements say more of it than that it is not negative."""
        low, high = self.intervals[name]
        return low > 0 and np.isfinite(high)


def costs(observations: Sequence[Observation], *, segments: bool) -> Fit:
    """The costs that fit the observations, relative errors alike. Without segments these cost nothing."""
    most = max((each.connections for each in observations), default=0)
    left_out = {"segment"} if not segments else set()
    if all(each.pairs_ns is not None for each in observations):
        left_out |= {"sleep"}
    if most < MANY:
        found, _ = _linear(observations, segments, most, left_out | {"cold"})
        return found
    # The share of displaced states has a bend, so each place of it is tried, in steps of about a tenth.
    tried = np.unique(np.geomspace(MANY / 10, most / 2, 40).round().astype(int))
    fits = [_linear(observations, segments, int(warm), left_out) for warm in tried]
    squares = np.array([square for _, square in fits])
    best = int(squares.argmin())
    found = fits[best][0]
    if not found.identified("cold"):
        return _linear(observations, segments, most, left_out | {"cold"})[0]
    free = len(observations) - len(found.values) - 1
    # Those that are no worse than chance makes the best one.
    bound = squares[best] * (1 + stats.f.ppf(CONFIDENCE, 1, max(free, 1)) / max(free, 1))
    likely = np.flatnonzero(squares <= bound)
    # A step more on each side: nothing between two that were tried is excluded.
    least, most = tried[max(likely[0] - 1, 0)], tried[min(likely[-1] + 1, len(tried) - 1)]
    return replace(found, warm=(int(tried[best]), int(least), int(most)))


def _linear(
    observations: Sequence[Observation], segments: bool, warm: int, left_out: set[str]
) -> tuple[Fit, float]:
    """The fit for caches that keep so many connections' states, and the sum of the squares of its errors."""
    names = [name for name in NAMES if name not in left_out]
    kept = [place for place, name in enumerate(NAMES) if name in names]
    counts = np.array([each.counts(segments, warm) for each in observations])[:, kept]
    times = np.array([each.cpu_ns for each in observations])
    measured = np.array([each.pairs_ns or 0.0 for each in observations])
    # Of those that sleep for each message the sleeps are most, and their error would be that of a call.
    asleep = np.array([each.pairs_ns is not None and each.sleeps > MOSTLY for each in observations])
    used = ~asleep
    if used.sum() <= len(names) + 1:
        raise UnfitError(f"{used.sum()} observations are too few for {len(names)} costs")
    if not (np.isfinite(counts).all() and np.isfinite(times).all() and (times > 0).all()):
        raise UnfitError("an observation is no positive number")

    def model(at: Array, *given: float) -> Array:
        return np.asarray(at @ np.array(given), dtype=float)

    start = np.full(len(names), times.min() / 4)
    try:
        found, covariance = optimize.curve_fit(
            model,
            counts[used],
            (times - measured)[used],
            p0=start,
            sigma=times[used],
            bounds=(0, np.inf),
            max_nfev=10_000,
        )
    except (RuntimeError, ValueError) as error:
        raise UnfitError(str(error)) from None
    errors = np.sqrt(np.diag(covariance))
    reach = stats.t.ppf((1 + CONFIDENCE) / 2, used.sum() - len(names)) * errors
    scale = np.where(errors > 0, errors, 1)
    correlation = covariance / np.outer(scale, scale)
    fitted = measured + model(counts, *found)
    fit = Fit(
        {name: float(value) for name, value in zip(names, found, strict=True)},
        {n: (float(v - r), float(v + r)) for n, v, r in zip(names, found, reach, strict=True)},
        [[float(value) for value in row] for row in correlation],
        [(o.what, o.cpu_ns, float(f)) for o, f in zip(observations, fitted, strict=True)],
    )
    return fit, float((((fitted - times)[used] / times[used]) ** 2).sum())


def wake_ups(round_trips: Sequence[tuple[int, int]], work_ns: float) -> list[tuple[int, int, int]]:
    """Wake-ups as a histogram: share, least and most, in nanoseconds.

    A round trip is twice the work and two wake-ups, each drawn for itself. The shares are those with which
    such sums have the percentiles that were measured, and their mean. Two modes of round trips, as of ends
    that share a processor now and then, are no such sum: then the mean counts, which decides the rate.
    """
    values = np.array([value for value, _ in round_trips], dtype=float)
    weights = np.array([count for _, count in round_trips], dtype=float)
    if not len(values) or weights.sum() <= 0:
        raise UnfitError("there are no round trips")
    order = np.argsort(values)
    values, shares = values[order], np.cumsum(weights[order]) / weights.sum()
    rest = np.maximum(values - 2 * work_ns, 0.0)
    least, most = max(rest[0] / 2, 1.0), max(rest[-1], 2.0)
    edges = np.concatenate([[0.0], np.geomspace(min(least, most / 2), most, BINS)])
    # The sum of two wake-ups, each evenly distributed in its bin: sixteen pairs of points stand for it.
    points = edges[:-1, None] + np.diff(edges)[:, None] * (np.arange(4) + 0.5) / 4
    sums = (points[:, None, :, None] + points[None, :, None, :]).reshape(BINS, BINS, 16)
    targets = np.unique(np.concatenate([np.linspace(0.02, 0.98, 49), [0.99, 0.995, 0.999]]))
    places = np.minimum(np.searchsorted(shares, targets), len(rest) - 1)
    below = (sums[..., None] <= rest[places]).mean(axis=2)
    expected = shares[places]
    # Small shares in the tail count as much as large ones in the middle.
    scale = np.sqrt(np.maximum(1 - expected, 1e-4))
    middles = (edges[:-1] + edges[1:]) / 2
    mean = float(np.average(rest, weights=np.diff(shares, prepend=0.0)))

    def off(logits: Array) -> Array:
        part = np.exp(logits - logits.max())
        part /= part.sum()
        seen = np.einsum("i,j,ijk->k", part, part, below)
        longer = 2 * float(part @ middles) / max(mean, 1.0) - 1
        return np.append((seen - expected) / scale, MEAN_WEIGHT * longer).astype(float)

    halves = np.diff(np.interp(edges, rest / 2, shares, left=0.0))
    solved = optimize.least_squares(off, np.log(np.maximum(halves, 1e-5)), max_nfev=200)
    part = np.exp(solved.x - solved.x.max())
    whole = np.rint(part / part.sum() * 1_000_000).astype(int)
    bins = zip(whole, np.rint(edges[:-1]), np.rint(edges[1:]), strict=True)
    return [(int(share), int(low), int(high)) for share, low, high in bins if share > 0]


def middle(bins: Sequence[tuple[int, int, int]]) -> float:
    """The median of a histogram, evenly distributed within its bins."""
    half = sum(share for share, _, _ in bins) / 2
    for share, low, high in sorted(bins, key=lambda each: each[1]):
        if share >= half:
            return low + (high - low) * half / share
        half -= share
    raise UnfitError("a histogram is empty")


@dataclass(frozen=True)
class Waker:
    """The waker's part of wake-ups: its mean and median in nanoseconds, and the histogram."""

    mean_ns: float
    median_ns: float
    bins: list[tuple[int, int, int]]


def waker(writes: Sequence[tuple[float, int]]) -> Waker:
    """From what writes take longer that wake a thread, in nanoseconds, and how many took so long."""
    values = np.array([max(value, 0.0) for value, _ in writes], dtype=float)
    weights = np.array([count for _, count in writes], dtype=float)
    if not len(values) or weights.sum() <= 0:
        raise UnfitError("there are no writes that wake")
    least, most = max(values.min(), 1.0), max(values.max(), 2.0)
    edges = np.geomspace(min(least, most / 2), most, BINS + 1)
    edges[0], edges[-1] = 0.0 if values.min() < 1 else np.floor(edges[0]), np.ceil(edges[-1])
    counts, _ = np.histogram(values, edges, weights=weights)
    kept = [
        (int(count), round(low), round(high))
        for count, low, high in zip(counts, edges[:-1], edges[1:], strict=True)
        if count
    ]
    order = np.argsort(values)
    place = int(np.searchsorted(np.cumsum(weights[order]), weights.sum() / 2))
    return Waker(float(np.average(values, weights=weights)), float(values[order][place]), kept)


@dataclass(frozen=True)
class Noise:
    """Interruptions of a processor at random times: their mean distance, their lengths, and the source."""

    interval_ns: int
    lengths: list[tuple[int, int, int]]
    source: str

    @property
    def share(self) -> float:
        """The part of a processor's time that they take."""
        counts = sum(count for count, _, _ in self.lengths)
        return sum(count * (low + high) / 2 for count, low, high in self.lengths) / counts / self.interval_ns


def noise(detours: Sequence[Sequence[tuple[int, int]]], seconds: float, source: str) -> Noise | None:
    """The noise of processors that were watched for so long each; None if there was none."""
    lengths = np.array([length for each in detours for _, length in each], dtype=float)
    if not len(lengths):
        return None
    edges = np.geomspace(lengths.min(), max(lengths.max(), lengths.min() + 1), BINS + 1)
    edges[0], edges[-1] = np.floor(edges[0]), np.ceil(edges[-1])
    counts, _ = np.histogram(lengths, edges)
    kept = [
        (int(count), round(low), round(high))
        for count, low, high in zip(counts, edges[:-1], edges[1:], strict=True)
        if count
    ]
    found = Noise(round(seconds * 1e9 * len(detours) / len(lengths)), kept, source)
    if found.share > MOST_NOISE:
        text = f"interruptions take {found.share:.0%} of the processors' time"
        raise UnfitError(f"{text}, so little is left for programs: measure while nothing else runs")
    return found
