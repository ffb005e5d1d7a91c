"""What each operation is meant to reach, as data.

"At least 3.5 times as fast" compares with a peer, "at most 1.2 times the floor" with hand-written SQL. Both
are medians over the rounds of one interleaved run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from benchmarks.measure import Case, Key

OURS = "cas-session"
FLOOR = "floor"
FAIR_FLOOR = "floor, waits at a file lock"
SA = "SQLAlchemySession"
LITE = "SQLiteSession"


@dataclass(frozen=True, slots=True)
class Target:
    """A bound for one operation against one other store.

    Attributes:
        faster: Bound from below for how many times better we are; or
        at_most: bound from above for our value as a multiple of theirs.
    """

    database: str
    case: str
    against: str
    key: Key = "p50_s"
    faster: float | None = None
    at_most: float | None = None

    @property
    def wanted(self) -> str:
        return f">= {self.faster:g}x" if self.faster is not None else f"<= {self.at_most:g}"

    def measured(self, case: Case) -> float | None:
        """In the target's own terms; None if one of the stores was not there."""
        if self.faster is None or self.key == "per_s":
            return case.ratio(OURS, self.against, self.key)
        return case.ratio(self.against, OURS, self.key)

    def is_reached(self, measured: float) -> bool:
        if self.faster is not None:
            return measured >= self.faster
        return self.at_most is not None and measured <= self.at_most


def _rows(
    database: str,
    case: str,
    *,
    key: Key = "p50_s",
    faster: Mapping[str, float] | None = None,
    at_most: Mapping[str, float] | None = None,
) -> Iterator[Target]:
    for against, bound in (faster or {}).items():
        yield Target(database, case, against, key, faster=bound)
    for against, bound in (at_most or {}).items():
        yield Target(database, case, against, key, at_most=bound)


TARGETS: tuple[Target, ...] = (
    *_rows("postgres", "append, 1k history", faster={SA: 3.5}, at_most={FLOOR: 1.2}),
    *_rows("postgres", "append, 1k history", key="cpu_s", at_most={FLOOR: 1.5}),
    *_rows("postgres", "append, no fsync", faster={SA: 6}, at_most={FLOOR: 1.3}),
    *_rows("postgres", "append, 1 ms round trip", faster={SA: 5}, at_most={FLOOR: 1.1}),
    *_rows("postgres", "append, object per call", faster={SA: 6}, at_most={FLOOR: 1.2}),
    *_rows("postgres", "append, new session", faster={SA: 6}, at_most={FLOOR: 1.2}),
    *_rows("postgres", "read 20 of 100k", faster={SA: 3}, at_most={FLOOR: 1.2}),
    *_rows("postgres", "read 100, cold", faster={SA: 2}, at_most={FLOOR: 1.1}),
    *_rows("postgres", "read 1k, cold", faster={SA: 1.6}, at_most={FLOOR: 0.8}),
    *_rows("postgres", "read 10k, cold", faster={SA: 1.6}, at_most={FLOOR: 0.7}),
    *_rows("postgres", "read 10k again, nothing new", faster={SA: 4}, at_most={FLOOR: 0.3}),
    *_rows("postgres", "read 10k again, a turn new", faster={SA: 4}, at_most={FLOOR: 0.3}),
    *_rows("postgres", "look at 10k again, nothing new", faster={SA: 40}, at_most={FLOOR: 0.05}),
    *_rows("postgres", "look at 10k again, a turn new", faster={SA: 40}, at_most={FLOOR: 0.05}),
    *_rows("postgres", "pop", faster={SA: 3}, at_most={FLOOR: 2.2}),
    *_rows("postgres", "clear 1k", faster={SA: 4}, at_most={FLOOR: 0.6}),
    *_rows("postgres", "replace 1k by 10", faster={SA: 6}, at_most={FLOOR: 0.6}),
    *_rows("postgres", "compact 10k to 10", faster={SA: 10}, at_most={FLOOR: 0.6}),
    *_rows("postgres", "turn, 25 from empty", faster={SA: 5}, at_most={FLOOR: 1.2}),
    *_rows("postgres", "turn, 8 at 1k", faster={SA: 6}, at_most={FLOOR: 0.4}),
    *_rows("postgres", "1 x 8 tasks, one session", key="per_s", faster={SA: 10, FLOOR: 2}),
    *_rows("postgres", "4 x 8 tasks, one session", key="per_s", faster={SA: 20, FLOOR: 5}),
    *_rows("postgres", "4 x 8 tasks, one session", key="p99_s", at_most={SA: 1 / 8}),
    *_rows("postgres", "1 x 8 tasks, 1,000 sessions", key="per_s", faster={SA: 14, FLOOR: 0.85}),
    *_rows("postgres", "4 x 8 tasks, 1,000 sessions", key="per_s", faster={SA: 10, FLOOR: 0.85}),
    *_rows("sqlite", "append, 1k history", faster={SA: 5, LITE: 1.4}, at_most={FLOOR: 1.1}),
    *_rows("sqlite", "append, 1k history", key="cpu_s", at_most={FLOOR: 1.5}),
    *_rows("sqlite", "append, object per call", faster={SA: 9, LITE: 5}, at_most={FLOOR: 1.1}),
    *_rows("sqlite", "turn, 25 from empty", faster={SA: 7, LITE: 3}, at_most={FLOOR: 1.1}),
    *_rows("sqlite", "turn, 8 at 1k", faster={SA: 7, LITE: 3}, at_most={FLOOR: 1.1}),
    *_rows("sqlite", "1 x 8 tasks, one session", key="per_s", faster={SA: 10, LITE: 2.5, FLOOR: 2}),
    *_rows("sqlite", "4 x 8 tasks, one session", key="p99_s", at_most={LITE: 1 / 4, FAIR_FLOOR: 1.5}),
    *(
        target
        for database in ("postgres", "sqlite")
        for target in (
            *_rows(database, "million: append", faster={SA: 4}, at_most={FLOOR: 1.25}),
            *_rows(database, "million: read 20", faster={SA: 3}, at_most={FLOOR: 1.2}),
            *_rows(database, "million: list 50", at_most={FLOOR: 1.2}),
            *_rows(database, "million: on disk", key="bytes", at_most={SA: 1.05, FLOOR: 1.05}),
            *_rows(database, "10,000 items in one append", faster={SA: 2}, at_most={FLOOR: 1.2}),
            *_rows(database, "one item of 20 MB", at_most={FLOOR: 1.2}),
        )
    ),
)
