"""CompactionPolicy: when to compact, how much, and what to do about writes that came between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self

from cas_session.compaction.cuts import OPEN_CALL_AGE_S, is_user_message, item_type
from cas_session.retry import MODEL, RetryPolicy
from cas_session.snapshot import Item

MANY_CANDIDATES = 10  # the threshold of openai-agents' OpenAIResponsesCompactionSession


@dataclass(frozen=True, slots=True)
class TriggerContext:
    """What a trigger decides on.

    Attributes:
        session_id: The session.
        items: The whole history, oldest first; not to be changed.
        byte_count: UTF-8 bytes of the stored items.
        response_id: The provider's response that the caller named, if any.
        used_tokens: Tokens of the run's last request and answer, as the provider counted them; None if no
            run is there.
    """

    session_id: str
    items: Sequence[Item]
    byte_count: int
    response_id: str | None = None
    used_tokens: int | None = None

    @property
    def candidates(self) -> list[Item]:
        """The items that are neither user messages nor compaction items."""
        return [item for item in self.items if not is_user_message(item) and item_type(item) != "compaction"]


Trigger = Callable[[TriggerContext], bool]


def when_candidates(count: int) -> Trigger:
    """At ``count`` or more items that are neither user messages nor compaction items."""
    return lambda context: len(context.candidates) >= count


def when_items(count: int) -> Trigger:
    """At ``count`` or more items of any kind."""
    return lambda context: len(context.items) >= count


def when_bytes(count: int) -> Trigger:
    """At ``count`` or more UTF-8 bytes of stored items."""
    return lambda context: context.byte_count >= count


def estimated_tokens(context: TriggerContext) -> int:
    """Four bytes a token: right within a third for English prose and JSON, too low for other scripts."""
    return context.byte_count // 4


def when_tokens(count: int, *, counter: Callable[[TriggerContext], int] = estimated_tokens) -> Trigger:
    """At ``count`` or more tokens: those that the run used if that is known, else those of ``counter``."""

    def is_due(context: TriggerContext) -> bool:
        used = context.used_tokens
        return (used if used is not None else counter(context)) >= count

    return is_due


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPolicy:
    """How a session is compacted. A frozen value, checked when it is built.

    Attributes:
        trigger: Says whether a history is worth a model call.
        keep_last_turns: Turns at the end that stay as they are; a turn starts at a user message.
        pinned: True for an item that is to be kept verbatim, with its whole group, behind the output.
        min_savings: The output must be smaller by this part (0.10 = a tenth), or the history stays.
        deadline_s: Seconds for one model call.
        lease_s: Seconds for which one worker has the right to compact a session; renewed before each call.
        open_call_age_s: Seconds after which a call without output, with a later user turn, is dead.
        cooldown_s: Seconds after a success in which the trigger is not asked again.
        failure_cooldown_s: The same after a failure, doubled with each further one, for all workers.
        failure_cooldown_max_s: Seconds, the longest of them.
        max_model_calls: Model calls of one compaction at most.
        max_model_tokens: Tokens after which one compaction makes no further call; None: no limit.
        model_retry: How a failed model call is tried again, within ``max_model_calls``.
        on_append: Only appends came between: ``rebase`` keeps the answer and leaves the new items behind it,
            ``retry`` starts from the current state, ``skip`` leaves the history untouched.
        on_rewrite: A pop, clear, replace, restore, delete or other compaction came between: ``retry`` loads
            again and asks the trigger again, ``skip`` leaves the history untouched.
        background: `run_compaction` returns at once, and the store finishes the work.
        on_error: ``report`` tells failures in the report only, ``raise`` raises them as well.
        scope: ``seen``: if an input filter withheld items from a run's model, the compaction after that run
            sends nothing and reports ``withheld``; ``history``: everything is sent whatever a filter did. A
            read limit is no filter.
    """

    trigger: Trigger = field(default=when_candidates(MANY_CANDIDATES))
    keep_last_turns: int = 0
    pinned: Callable[[Item], bool] | None = None
    min_savings: float = 0.10
    deadline_s: float = 300
    lease_s: float = 330
    open_call_age_s: float = OPEN_CALL_AGE_S
    cooldown_s: float = 0
    failure_cooldown_s: float = 60
    failure_cooldown_max_s: float = 1800
    max_model_calls: int = 2
    max_model_tokens: int | None = None
    model_retry: RetryPolicy = MODEL
    on_append: Literal["rebase", "retry", "skip"] = "rebase"
    on_rewrite: Literal["retry", "skip"] = "retry"
    background: bool = False
    on_error: Literal["report", "raise"] = "report"
    scope: Literal["seen", "history"] = "seen"

    def __post_init__(self) -> None:
        _check(callable(self.trigger), "trigger", self.trigger, "a callable on a TriggerContext")
        _check(self.pinned is None or callable(self.pinned), "pinned", self.pinned, "a callable on an item")
        _check(_is_count(self.keep_last_turns, 0), "keep_last_turns", self.keep_last_turns, "an int >= 0")
        _check(0 <= self.min_savings < 1, "min_savings", self.min_savings, "a part of 1, from 0 to below 1")
        _check(self.deadline_s > 0, "deadline_s", self.deadline_s, "seconds above 0")
        _check(
            self.lease_s > self.deadline_s,
            "lease_s",
            self.lease_s,
            f"seconds above deadline_s={self.deadline_s}, or the lease ends while the model is asked",
        )
        _check(self.open_call_age_s > 0, "open_call_age_s", self.open_call_age_s, "seconds above 0")
        for name in ("cooldown_s", "failure_cooldown_s", "failure_cooldown_max_s"):
            _check(getattr(self, name) >= 0, name, getattr(self, name), "seconds, 0 or more")
        _check(_is_count(self.max_model_calls, 1), "max_model_calls", self.max_model_calls, "an int >= 1")
        _check(
            self.max_model_tokens is None or _is_count(self.max_model_tokens, 1),
            "max_model_tokens",
            self.max_model_tokens,
            "None or an int >= 1",
        )
        _check(
            self.on_append in ("rebase", "retry", "skip"),
            "on_append",
            self.on_append,
            "rebase, retry or skip",
        )
        _check(self.on_rewrite in ("retry", "skip"), "on_rewrite", self.on_rewrite, "retry or skip")
        _check(self.on_error in ("report", "raise"), "on_error", self.on_error, "report or raise")
        _check(self.scope in ("seen", "history"), "scope", self.scope, "seen or history")

    @classmethod
    def strict(cls, **changes: object) -> Self:
        """The row-version rule to the letter: any change is a mismatch, tried again from what is there."""
        return cls(**{"on_append": "retry", "on_rewrite": "retry", **changes})  # type: ignore[arg-type]


def _check(holds: bool, name: str, value: object, wanted: str) -> None:
    if not holds:
        raise ValueError(f"CompactionPolicy.{name} must be {wanted}; got {value!r}")


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
