"""What one run of the demonstration was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Api = Literal["local", "openai"]

SECONDS = {"local": 10.0, "openai": 60.0}
LAST_START_S = 20.0  # after the beginning no turn is begun, unless the user asked for more


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Given to every process of a run.

    Attributes:
        url: The database.
        run: Names the two sessions of this run, so that a database can serve any number of runs.
        api: ``local``: endpoints of the run's own, no key needed. ``openai``: the real one.
        model: The name of the model that compacts.
        naive: Rewrite by hand (read, call, clear, append) and not with `CasSession.compact`.
        strict: Compact by `CompactionPolicy.strict`.
        workers: Processes that append turns.
        turns: Turns of all of them together at most; None: as many as fit into `seconds`.
        seconds: How long turns are appended at most; None: until `turns` are in, or else `SECONDS`, less if
            it took long to start.
        seed: Decides what the turns say.
    """

    url: str
    run: str
    api: Api = "local"
    model: str = "gpt-5.1"
    naive: bool = False
    strict: bool = False
    workers: int = 3
    turns: int | None = None
    seconds: float | None = None
    seed: int = 0

    @property
    def pause_s(self) -> float:
        """Between two turns of a writer, on average. Agents think; and tokens of the real API cost money."""
        return 0.1 if self.api == "local" else 2.0

    def load_s(self, elapsed_s: float) -> float:
        """How long to append turns, if it took so long to get ready."""
        if self.seconds is not None:
            return self.seconds
        if self.turns is not None:
            return float("inf")
        wanted = SECONDS[self.api]
        return wanted if self.api == "openai" else max(min(wanted, LAST_START_S - elapsed_s), 1.0)

    @property
    def deadline_s(self) -> float:
        """For one model call."""
        return 30.0 if self.api == "local" else 180.0

    @property
    def clears(self) -> int:
        """How often the other session is cleared at least, however short the run is."""
        return 3 if self.api == "local" else 1

    @property
    def shared(self) -> str:
        """The session that every process writes to while it is compacted."""
        return f"demo-{self.run}-shared"

    @property
    def erased(self) -> str:
        """The session that is cleared while it is compacted."""
        return f"demo-{self.run}-erased"

    def share_of(self, writer: int) -> int | None:
        """How many turns a writer appends at most; writers count from 1."""
        if self.turns is None:
            return None
        return self.turns // self.workers + (writer <= self.turns % self.workers)
