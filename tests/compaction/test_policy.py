"""The policy is a value that is checked when it is built, and each trigger counts what it says."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

import pytest

from cas_session import CompactionPolicy, RetryPolicy, TriggerContext
from cas_session.compaction.cooldown import resting_until
from cas_session.compaction.policy import when_bytes, when_candidates, when_items, when_tokens
from cas_session.driver import CompactionRow
from tests.conformance.writes import new_id


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("trigger", 10),
        ("keep_last_turns", -1),
        ("keep_last_turns", 1.5),
        ("keep_last_turns", True),
        ("pinned", "system"),
        ("min_savings", 1),
        ("min_savings", -0.1),
        ("deadline_s", 0),
        ("lease_s", 300),
        ("open_call_age_s", 0),
        ("cooldown_s", -1),
        ("failure_cooldown_s", -1),
        ("failure_cooldown_max_s", -1),
        ("max_model_calls", 0),
        ("max_model_tokens", 0),
        ("on_append", "rewrite"),
        ("on_rewrite", "rebase"),
        ("on_error", "ignore"),
        ("scope", "all"),
    ],
)
def test_a_wrong_value_is_refused_with_the_name_of_its_field(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"CompactionPolicy\.{field} must be .*; got"):
        CompactionPolicy(**{field: value})


def test_a_policy_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        CompactionPolicy().keep_last_turns = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_attempts": 0},
        {"max_attempts": None},
        {"deadline_s": -1},
        {"wait_initial_s": -1},
        {"wait_max_s": -1},
        {"factor": 0.5},
    ],
)
def test_a_wrong_retry_policy_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must|at least|needs"):
        RetryPolicy(**wrong)


ITEMS = (
    {"role": "user", "content": "a"},
    {"type": "compaction", "encrypted_content": "x"},
    {"role": "assistant", "content": "b"},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
)


@pytest.mark.parametrize(
    ("trigger", "due"),
    [
        (when_candidates(2), True),
        (when_candidates(3), False),
        (when_items(4), True),
        (when_items(5), False),
        (when_bytes(400), True),
        (when_bytes(401), False),
        (when_tokens(100), True),
        (when_tokens(101), False),
        (when_tokens(7, counter=lambda context: 7), True),
    ],
)
def test_each_trigger_counts_what_it_says(trigger: Any, due: bool) -> None:
    assert trigger(TriggerContext("s", ITEMS, byte_count=400)) is due


def test_tokens_that_the_run_used_go_before_an_estimate() -> None:
    context = TriggerContext("s", ITEMS, byte_count=400, used_tokens=5_000)

    assert when_tokens(5_000, counter=lambda _: 0)(context)
    assert not when_tokens(5_001, counter=lambda _: 10_000)(context)


def attempt(decision: str | None, minute: int) -> CompactionRow:
    at = datetime(2026, 1, 1, 0, minute, tzinfo=UTC)
    facts: dict[str, Any] = dict.fromkeys(field.name for field in dataclasses.fields(CompactionRow))
    facts |= {"attempt_id": new_id(), "decision": decision, "finished_at": at if decision else None}
    return CompactionRow(**facts)


@pytest.mark.parametrize(
    ("decisions", "seconds"),
    [
        ([], None),
        (["applied"], None),
        (["failed"], 60),
        (["failed", "failed"], 120),
        (["failed", "conflict", "not_smaller", "cancelled", "empty_output"], 240),
        (["failed"] * 7, 1800),
        (["failed"] * 16, 1800),
        (["failed", "applied", "failed", "failed"], 60),
        (["applied", "failed"], None),
        ([None, "failed"], 60),
        (["conflict"], None),
    ],
)
def test_failures_in_a_row_double_the_rest(decisions: list[str | None], seconds: float | None) -> None:
    attempts = [attempt(decision, 50 - at) for at, decision in enumerate(decisions)]

    until = resting_until(attempts, CompactionPolicy())

    if seconds is None:
        assert until is None
    else:
        newest = next(row.finished_at for row in attempts if row.decision not in (None, "conflict"))
        assert until is not None
        assert newest is not None
        assert (until - newest).total_seconds() == seconds


def test_a_success_rests_as_long_as_the_policy_says() -> None:
    until = resting_until([attempt("rebased", 1)], CompactionPolicy(cooldown_s=30))

    assert until is not None
    assert until.second == 30
