"""What has happened so far in a run, as the processes told it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from cas_session.cli.demo.messages import (
    Answered,
    Appended,
    Asked,
    Cleared,
    Compacted,
    Failed,
    Looked,
    News,
    WasRead,
)

IDLE = frozenset({"below_threshold", "nothing_to_compact"})  # somebody looked, and there was nothing to do


@dataclass(slots=True)
class Ledger:
    """Everything that counts. Moments are seconds of the machine's monotonic clock."""

    appends: list[Appended] = field(default_factory=list)
    reads: int = 0
    faults: list[WasRead] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    answered: list[Answered] = field(default_factory=list)
    compactions: list[Compacted] = field(default_factory=list)
    clears: list[Cleared] = field(default_factory=list)
    looks: list[Looked] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    resealed: int = 0  # items of the seed whose opaque content came from another server

    def hear(self, news: News) -> None:
        match news:
            case Appended():
                self.appends.append(news)
            case WasRead():
                self.reads += 1
                if news.fault is not None:
                    self.faults.append(news)
            case Asked():
                self.asked.append(news)
            case Answered():
                self.answered.append(news)
            case Compacted():
                self.compactions.append(news)
            case Cleared():
                self.clears.append(news)
            case Looked():
                self.looks.append(news)
            case Failed():
                self.failures.append(news.error)
            case _:
                pass

    def turns(self, session_id: str) -> list[Appended]:
        return [append for append in self.appends if append.session_id == session_id]

    def model_calls(self, session_id: str) -> list[tuple[float, float]]:
        """Begin and end of each answered model call for this session."""
        asked = [news.at for news in self.asked if news.session_id == session_id]
        answered = [news.at for news in self.answered if news.session_id == session_id]
        return list(zip(asked, answered, strict=False))

    def is_asked(self, session_id: str) -> bool:
        """Whether a model call for this session is under way."""
        count = Counter(news.session_id for news in self.asked)
        count.subtract(news.session_id for news in self.answered)
        return count[session_id] > 0

    def statuses(self, session_id: str) -> Counter[str]:
        """How its compactions ended, those left out that found nothing to do."""
        return Counter(
            news.status
            for news in self.compactions
            if news.session_id == session_id and news.status not in IDLE
        )

    def compacting(self, session_id: str) -> list[tuple[float, float]]:
        """Begin of the first model call and end of each compaction of this session that asked a model."""
        spans = []
        begins = [news.at for news in self.asked if news.session_id == session_id]
        last = float("-inf")
        for done in self.compactions:
            if done.session_id == session_id:
                inside = [begin for begin in begins if last < begin <= done.at]
                spans += [(inside[0], done.at)] if inside else []
                last = done.at
        return spans


def during(appends: Sequence[Appended], spans: Iterable[tuple[float, float]]) -> list[Appended]:
    """The appends that were under way at any moment of the spans."""
    all_spans = list(spans)
    return [
        append
        for append in appends
        if any(append.began < end and begin < append.ended for begin, end in all_spans)
    ]


def within(appends: Sequence[Appended], spans: Iterable[tuple[float, float]]) -> list[Appended]:
    """The appends that began and were acknowledged inside one of the spans."""
    all_spans = list(spans)
    return [
        append
        for append in appends
        if any(begin <= append.began and append.ended <= end for begin, end in all_spans)
    ]
