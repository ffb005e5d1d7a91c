"""What the processes of a run tell each other. Moments are seconds of the machine's monotonic clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cas_session.snapshot import Item

# -- to a process


@dataclass(frozen=True, slots=True)
class Begin:
    """Do what you are there for.

    Attributes:
        first: The first item of the shared session.
        shared_url: The endpoint that compacts it; None for the real one.
        erased_url: The endpoint that compacts the other session.
    """

    first: Item
    shared_url: str | None
    erased_url: str | None


@dataclass(frozen=True, slots=True)
class Stop:
    """Finish what you are at, then end."""


@dataclass(frozen=True, slots=True)
class Fill:
    """Append turns to the session that is about to be cleared."""

    number: int


@dataclass(frozen=True, slots=True)
class Fold:
    """Compact that session once."""


@dataclass(frozen=True, slots=True)
class Clear:
    """Clear it; with ``refill`` append a turn right after."""

    number: int
    refill: bool


@dataclass(frozen=True, slots=True)
class Look:
    """Read it, and compare it with what must be there."""

    number: int


Order = Begin | Stop | Fill | Fold | Clear | Look

# -- from a process


@dataclass(frozen=True, slots=True)
class Ready:
    """Connected, and waiting for orders."""


@dataclass(frozen=True, slots=True)
class Appended:
    """The store acknowledged an append."""

    session_id: str
    author: str
    number: int
    version: int
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class WasRead:
    """A history was read and checked; what is wrong with it, if anything.

    ``invalid``: the API would refuse it. ``torn``: the middle of a rewrite. ``stale``: older than what this
    process had seen.
    """

    version: int
    fault: Literal["invalid", "torn", "stale"] | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """A model call began."""

    session_id: str
    at: float


@dataclass(frozen=True, slots=True)
class Answered:
    """A model call ended."""

    session_id: str
    at: float


@dataclass(frozen=True, slots=True)
class Compacted:
    """A compaction, or a rewrite by hand, ended.

    Attributes:
        landed: Whether it replaced anything.
        read_version: What it folded was the history of this version.
        version: The version that it made.
        cleared_version: By hand only: the version that its clear made.
    """

    session_id: str
    at: float
    status: str
    landed: bool
    read_version: int
    version: int
    model_calls: int
    cleared_version: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Filled:
    """The turns are in."""

    number: int


@dataclass(frozen=True, slots=True)
class Cleared:
    """The clear was acknowledged."""

    number: int
    version: int
    at: float


@dataclass(frozen=True, slots=True)
class Looked:
    """What was there after the compaction: how many items that were erased or made of such, and how many
    of the refill are missing."""

    number: int
    returned: int
    missing: int


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing more to do."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The process ends by an error that it did not expect."""

    error: str


News = Ready | Appended | WasRead | Asked | Answered | Compacted | Filled | Cleared | Looked | Done | Failed
