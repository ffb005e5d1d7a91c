"""Stores side by side: each round every store does the same, in rotated order; ratios are within a round."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Call = Callable[[], Awaitable[object]]
Key = Literal["p50_s", "p99_s", "total_s", "cpu_s", "per_s", "bytes"]
Round = dict[Key, float]
"""What one store did in one round: median, 99th percentile and sum of its times, client CPU an operation,
operations a second, bytes on disk. In some cases only a few of them."""

PATIENCE_S = 3.0  # a store that needs longer for its calls of a round does fewer of them


@dataclass(slots=True)
class Case:
    """One operation on one database.

    Attributes:
        rounds: What each store did, by round number; a store may leave rounds out.
        lost: Acknowledged appends that are not there; only where that was counted.
        failed: Calls that raised; only there.
    """

    name: str
    database: str
    rounds: dict[str, dict[int, Round]] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)

    def add(self, store: str, number: int, measured: Round) -> None:
        self.rounds.setdefault(store, {})[number] = measured

    def median(self, store: str, key: Key) -> float | None:
        found = [one[key] for one in self.rounds.get(store, {}).values() if key in one]
        return statistics.median(found) if found else None

    def ratio(self, store: str, other: str, key: Key) -> float | None:
        """The median over rounds of ``store``'s value divided by ``other``'s; None if they never met."""
        mine, theirs = self.rounds.get(store, {}), self.rounds.get(other, {})
        quotients = [
            mine[number][key] / theirs[number][key]
            for number in mine.keys() & theirs.keys()
            if key in mine[number] and theirs[number].get(key)
        ]
        return statistics.median(quotients) if quotients else None


async def nothing() -> None: ...


async def interleave(
    case: Case,
    prepare: Mapping[str, Callable[[int], Awaitable[Sequence[Call]]]],
    rounds: int,
    settle: Mapping[str, Call] | None = None,
) -> Case:
    """Run the calls that each store prepares for a round, the first store another one each round.

    One round before, -1, is not recorded: it opens connections and prepares statements.
    """
    names = list(prepare)
    gc.collect()
    gc.freeze()  # so that the collections below look only at what is new
    for number in range(-1, rounds):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            calls = await prepare[name](number)
            gc.collect()
            measured = await timed(calls, (settle or {}).get(name, nothing))
            if number >= 0:
                case.add(name, number, measured)
    return case


async def timed(calls: Sequence[Call], settle: Call = nothing) -> Round:
    """Time the calls one after the other. What one leaves behind counts only as CPU."""
    seconds: list[float] = []
    cpu_s = 0.0
    for call in calls:
        cpu_began, began = time.process_time(), time.perf_counter()
        await call()
        seconds.append(time.perf_counter() - began)
        await settle()
        cpu_s += time.process_time() - cpu_began
        if sum(seconds) > PATIENCE_S:
            break
    return {**times(seconds), "cpu_s": cpu_s / len(seconds)}


def times(seconds: Sequence[float]) -> Round:
    ordered = sorted(seconds)
    return {
        "p50_s": statistics.median(ordered),
        "p99_s": ordered[math.ceil(0.99 * len(ordered)) - 1],
        "total_s": sum(ordered),
    }
