"""What a run proved: the rows of the table, and the promises that were broken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from cas_session.cli.demo.ledger import during, within
from cas_session.cli.demo.messages import Appended
from cas_session.cli.demo.outcome import Outcome

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
        f"by {settings.workers} processes, each turn in one append",
        kept=bool(turns),
    )
    yield Row(
        "turns found",
        str(folded + verbatim),
        f"{folded} {where}, {verbatim} behind it",
        kept=folded + verbatim == len(turns),
    )
    if outcome.ledger.resealed:
        yield Row(
            "items sealed anew",
            str(outcome.ledger.resealed),
            "what another server sealed, this one cannot open",
        )


def _promises(outcome: Outcome) -> Iterable[Row]:
    accounts, ledger = (outcome.shared, outcome.erased), outcome.ledger
    lost = sorted((name for account in accounts for name in account.lost), key=_by_number)
    counted = "by operations and content" if outcome.opened else "by operations; sealed content not opened"
    yield _row("lost", lost, f"gone, erased by nobody; {counted}")
    duplicated = sorted((name for account in accounts for name in account.duplicated), key=_by_number)
    yield _row("duplicated", duplicated, "there more often than appended")
    altered = [what for account in accounts for what in account.altered]
    scope = "all in place" if outcome.opened else "of what was not compacted"
    yield _row("altered", altered, f"order of keys, NUL, emoji: {scope}")
    gaps = [what for account in accounts for what in account.gaps]
    yield _row("version gaps", gaps, f"{outcome.versions} operations, each the next version, as acknowledged")
    yield _undone(outcome)
    invalid = [read.detail for read in ledger.faults if read.fault == "invalid"] + list(outcome.refused)
    yield _row("invalid histories", invalid, f"{ledger.reads} reads, checked by the rules of the API")
    torn = [read.detail for read in ledger.faults if read.fault != "invalid"]
    yield _row("torn or stale reads", torn, "half a rewrite, or older than seen before")


def _undone(outcome: Outcome) -> Row:
    ledger = outcome.ledger
    back = {look.number for look in ledger.looks if look.returned}
    undone = outcome.erased.undone | {clear.version for clear in ledger.clears if clear.number in back}
    calls = ledger.model_calls(outcome.settings.erased)
    inside = sum(any(begin < clear.at < end for begin, end in calls) for clear in ledger.clears)
    return Row(
        "undone clears",
        str(len(undone)),
        f"of {inside} while the model was folding what they erased",
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
        "; ".join([_counts(statuses), f"{_counts(beside)} (cleared session)", *errors[:1]]),
        kept=landed > 0,
    )
    yield _calls(outcome, landed)
    yield from _latencies(outcome)


def _calls(outcome: Outcome, landed: int) -> Row:
    settings, ledger = outcome.settings, outcome.ledger
    shared = sum(done.model_calls for done in ledger.compactions if done.session_id == settings.shared)
    beside = [done for done in ledger.compactions if done.session_id == settings.erased and done.model_calls]
    void = sum(done.model_calls for done in beside if not done.landed)
    stored = landed + sum(done.landed for done in beside)
    parts = [f"{stored} answers stored", f"{void} void by a clear"]
    if wasted := shared - landed:
        parts.insert(1, f"{wasted} in vain" + (" (the strict policy begins anew)" if settings.strict else ""))
    total = shared + sum(done.model_calls for done in beside)
    if outcome.counted_calls not in (None, total):
        parts.append(f"the endpoints counted {outcome.counted_calls}")
    conflicts = ledger.statuses(settings.shared)["conflict"]
    return Row(
        "model calls",
        str(total),
        ", ".join(parts),
        # An answer that is thrown away because somebody appended is paid for nothing.
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
        f"{_median(beside)}; {len(inside)} all inside a model call",
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


def _by_number(name: str) -> tuple[str, int]:
    author, _, number = name.rpartition("-")
    return ("" if author.startswith("w") else author, int(number)) if number.isdigit() else (name, 0)


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
