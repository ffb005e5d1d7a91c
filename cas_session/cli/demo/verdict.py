"""What a run proved: the rows of the table, and the promises that were broken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from cas_session.cli.demo.ledger import during, within
from cas_session.cli.demo.messages import Appended
from cas_session.cli.demo.stage import Outcome

SHOWN = 3  # names, in a row of the table


@dataclass(frozen=True, slots=True)
class Row:
    """One row: what was counted, the figure, what it means.

    ``kept`` says whether the promise behind it held; None for a figure that promises nothing.
    """

    name: str
    figure: str
    meaning: str
    kept: bool | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The table, and the broken promises in words. `held` is what the exit status says."""

    rows: tuple[Row, ...]
    broken: tuple[str, ...]

    @property
    def held(self) -> bool:
        return not self.broken


def judge(outcome: Outcome) -> Verdict:
    """Hold what was found against what was promised."""
    rows = (*_turns(outcome), *_promises(outcome), *_figures(outcome))
    broken = [f"{row.name}: {row.figure}" for row in rows if row.kept is False]
    return Verdict(rows, (*broken, *(f"a process failed: {why}" for why in outcome.ledger.failures)))


def _turns(outcome: Outcome) -> Iterable[Row]:
    account, settings = outcome.shared, outcome.settings
    turns = {f"{a.author}-{a.number}" for a in outcome.ledger.turns(settings.shared)}
    folded, verbatim = len(account.folded & turns), len(account.verbatim & turns)
    where = "inside the compaction item" if outcome.opened else "compacted, by the operations"
    yield Row(
        "turns acknowledged",
        str(len(turns)),
        f"by {settings.workers} processes; each turn is one append, and has a version",
        kept=bool(turns),
    )
    yield Row("turns found", str(folded + verbatim), f"{folded} {where}, {verbatim} behind it as they were")


def _promises(outcome: Outcome) -> Iterable[Row]:
    accounts, ledger = (outcome.shared, outcome.erased), outcome.ledger
    lost = sorted(name for account in accounts for name in account.lost)
    yield _row("lost", lost, "acknowledged, erased by nobody, and gone")
    duplicated = sorted(name for account in accounts for name in account.duplicated)
    yield _row("duplicated", duplicated, "there more often than it was appended")
    altered = [what for account in accounts for what in account.altered]
    scope = "every key, byte and place" if outcome.opened else "of what was not compacted"
    yield _row("altered", altered, f"{scope}; NUL and emoji are in it")
    gaps = [what for account in accounts for what in account.gaps]
    yield _row("version gaps", gaps, f"{outcome.versions} writes, each with the next version")
    yield _undone(outcome)
    invalid = [read.detail for read in ledger.faults if read.fault == "invalid"] + list(outcome.refused)
    yield _row("invalid histories", invalid, f"{ledger.reads} reads, checked by the rules of the API")
    torn = [read.detail for read in ledger.faults if read.fault != "invalid"]
    yield _row("torn or stale reads", torn, "the middle of a rewrite, or an older version than before")


def _undone(outcome: Outcome) -> Row:
    ledger = outcome.ledger
    back = {look.number for look in ledger.looks if look.returned}
    undone = outcome.erased.undone | {clear.version for clear in ledger.clears if clear.number in back}
    calls = ledger.model_calls(outcome.settings.erased)
    inside = sum(any(begin < clear.at < end for begin, end in calls) for clear in ledger.clears)
    return Row(
        "undone clears",
        str(len(undone)),
        f"{inside} clears while the model was folding what they erased",
        kept=not undone and inside > 0,
    )


def _figures(outcome: Outcome) -> Iterable[Row]:
    settings, ledger = outcome.settings, outcome.ledger
    statuses, beside = ledger.statuses(settings.shared), ledger.statuses(settings.erased)
    landed = sum(done.landed for done in ledger.compactions if done.session_id == settings.shared)
    errors = sorted({done.error for done in ledger.compactions if done.error and done.status == "failed"})
    yield Row(
        "compactions",
        str(statuses.total()),
        "; ".join([_counts(statuses), f"of the cleared session: {_counts(beside)}", *errors[:1]]),
        kept=landed > 0,
    )
    yield _calls(outcome, landed)
    yield from _latencies(outcome)


def _calls(outcome: Outcome, landed: int) -> Row:
    settings, ledger = outcome.settings, outcome.ledger
    shared = sum(done.model_calls for done in ledger.compactions if done.session_id == settings.shared)
    beside = sum(done.model_calls for done in ledger.compactions if done.session_id == settings.erased)
    conflicts = ledger.statuses(settings.shared)["conflict"]
    wasted = shared - landed
    parts = [f"{landed} answers stored", f"{beside} void by a clear"]
    if wasted:
        parts.insert(
            1, f"{wasted} thrown away" + (", as the strict policy has it" if settings.strict else "")
        )
    return Row(
        "model calls",
        str(shared + beside),
        ", ".join(parts),
        kept=None if settings.strict or settings.naive else not conflicts,
    )


def _latencies(outcome: Outcome) -> Iterable[Row]:
    ledger, session_id = outcome.ledger, outcome.settings.shared
    appends = ledger.turns(session_id)
    beside = during(appends, ledger.compacting(session_id))
    inside = within(appends, ledger.model_calls(session_id))
    yield Row(
        "slowest append, compacting",
        _slowest(beside),
        f"{_median(beside)}; {len(inside)} appends began and ended inside a model call",
        kept=bool(inside),
    )
    busy = {append.version for append in beside}
    quiet = [append for append in appends if append.version not in busy]
    yield Row("slowest append, otherwise", _slowest(quiet), _median(quiet))


def _row(name: str, found: Sequence[str], good: str) -> Row:
    return Row(name, str(len(found)), _some(found) if found else good, kept=not found)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _counts(statuses: dict[str, int]) -> str:
    return ", ".join(f"{count} {status}" for status, count in sorted(statuses.items())) or "none"


def _slowest(appends: Sequence[Appended]) -> str:
    return f"{max(_durations_ms(appends)):.1f} ms" if appends else "none"


def _median(appends: Sequence[Appended]) -> str:
    if not appends:
        return "no append fell outside"
    return f"median {median(_durations_ms(appends)):.1f} ms of {len(appends)}"


def _durations_ms(appends: Sequence[Appended]) -> list[float]:
    return [(append.ended - append.began) * 1000 for append in appends]
