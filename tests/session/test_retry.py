"""The one retry loop: budgets counted apart, deadlines, waits, and notes; driven by a clock of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from cas_session import RetryPolicies, RetryPolicy, StorageUnavailableError, WriteOutcomeUnknownError
from cas_session.retry import CONFLICT, MODEL, NO_RETRY, OUTCOME, TRANSIENT, Timing, retry
from tests.session.stores import FakeTime


class Cheap(Exception):
    """Fails under the cheap budget."""


class Dear(Exception):
    """Fails under the dear one."""


CHEAP = RetryPolicy(max_attempts=4, wait_initial_s=1, wait_max_s=100)
DEAR = RetryPolicy(max_attempts=2, wait_initial_s=10, wait_max_s=100)


def budget_of(error: Exception) -> RetryPolicy | None:
    return {Cheap: CHEAP, Dear: DEAR}.get(type(error))


class Call:
    """Raises each of these in turn, then returns. An attempt takes ``seconds``."""

    def __init__(self, time: FakeTime, *errors: type[Exception], seconds: float = 0) -> None:
        self.attempts = 0
        self._time = time
        self._errors = errors
        self._seconds = seconds

    async def __call__(self) -> str:
        self.attempts += 1
        self._time.now += self._seconds
        if self.attempts <= len(self._errors):
            raise self._errors[self.attempts - 1](f"attempt {self.attempts}")
        return "done"


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


async def spent(time: FakeTime, call: Call, *, policies: Any = budget_of) -> Exception:
    with pytest.raises((Cheap, Dear, KeyError)) as caught:
        await retry(call, policies, timing=time.timing)
    return caught.value


async def test_a_call_that_succeeds_is_made_once(time: FakeTime) -> None:
    call = Call(time)

    assert await retry(call, budget_of, timing=time.timing) == "done"
    assert (call.attempts, time.slept) == (1, [])


async def test_a_failure_that_no_budget_covers_is_raised_at_once_as_it_is(time: FakeTime) -> None:
    call = Call(time, KeyError)

    error = await spent(time, call)

    assert (call.attempts, time.slept) == (1, [])
    assert not hasattr(error, "__notes__")


async def test_the_last_error_is_raised_with_a_note_of_the_attempts(time: FakeTime) -> None:
    call = Call(time, *[Cheap] * 9, seconds=0.5)

    error = await spent(time, call)

    assert str(error) == "attempt 4"
    assert error.__notes__ == ["gave up after 4 attempts in 9.00 s"]  # 4 x 0.5 + 1 + 2 + 4


async def test_budgets_count_apart(time: FakeTime) -> None:
    """Three cheap failures do not use up a dear attempt, nor the other way round."""
    call = Call(time, Cheap, Cheap, Dear, Cheap)

    assert await retry(call, budget_of, timing=time.timing) == "done"
    assert time.slept == [1, 2, 10, 4]


async def test_the_budget_that_is_spent_ends_the_loop(time: FakeTime) -> None:
    call = Call(time, Cheap, Dear, Cheap, Dear, Cheap)

    error = await spent(time, call)

    assert isinstance(error, Dear)
    assert call.attempts == 4


async def test_an_uncovered_failure_ends_the_loop_with_a_note(time: FakeTime) -> None:
    call = Call(time, Cheap, KeyError)

    error = await spent(time, call)

    assert isinstance(error, KeyError)
    assert error.__notes__ == ["gave up after 2 attempts in 1.00 s"]


async def test_no_attempt_is_begun_after_the_deadline(time: FakeTime) -> None:
    """Nor is it waited for: a wait that would end behind it is not begun."""
    policy = RetryPolicy(max_attempts=None, deadline_s=10, wait_initial_s=3, wait_max_s=3, jitter=False)
    call = Call(time, *[Cheap] * 99)

    await spent(time, call, policies=lambda _: policy)

    assert time.slept == [3, 3, 3]
    assert call.attempts == 4


async def test_deadlines_count_apart_too(time: FakeTime) -> None:
    """Time that one kind of failure took is not taken from another: its first failure starts its clock."""
    slow = RetryPolicy(max_attempts=None, deadline_s=30, wait_initial_s=20, wait_max_s=20, jitter=False)
    quick = RetryPolicy(max_attempts=None, deadline_s=5, wait_initial_s=4, wait_max_s=4, jitter=False)
    call = Call(time, Cheap, Dear, Dear, seconds=1)

    error = await spent(time, call, policies=lambda error: slow if type(error) is Cheap else quick)

    assert isinstance(error, Dear)
    assert time.slept == [20, 4]


async def test_a_first_attempt_longer_than_the_deadline_is_still_followed_by_another(time: FakeTime) -> None:
    """A write that was cut off by its timeout is of unknown outcome, and must be asked for once more."""
    call = Call(time, Dear, seconds=60)

    assert await retry(call, lambda _: OUTCOME, timing=time.timing) == "done"


@pytest.mark.parametrize(("draw", "waits"), [(0.0, [0, 0, 0]), (0.5, [0.5, 1, 1.5]), (1.0, [1, 2, 3])])
async def test_a_wait_is_drawn_from_zero_to_its_bound(draw: float, waits: Sequence[float]) -> None:
    """Full jitter: the bound grows by the factor up to the longest wait."""
    policy = RetryPolicy(max_attempts=4, wait_initial_s=1, wait_max_s=3, factor=2)
    time = FakeTime()
    timing = Timing(clock=lambda: time.now, sleep=time.sleep, random=lambda: draw)

    with pytest.raises(Cheap):
        await retry(Call(time, *[Cheap] * 9), lambda _: policy, timing=timing)

    assert time.slept == waits


async def test_without_jitter_a_wait_is_its_bound() -> None:
    policy = RetryPolicy(max_attempts=4, wait_initial_s=1, wait_max_s=100, factor=3, jitter=False)
    time = FakeTime()
    timing = Timing(clock=lambda: time.now, sleep=time.sleep, random=lambda: 0.0)

    with pytest.raises(Cheap):
        await retry(Call(time, *[Cheap] * 9), lambda _: policy, timing=timing)

    assert time.slept == [1, 3, 9]


async def test_a_long_row_of_failures_waits_the_longest_wait(time: FakeTime) -> None:
    """Also where the factor's power is no float any more."""
    policy = RetryPolicy(max_attempts=2000, wait_initial_s=1, wait_max_s=2, factor=10)
    call = Call(time, *[Cheap] * 1999)

    assert await retry(call, lambda _: policy, timing=time.timing) == "done"
    assert time.slept[-1] == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_attempts": 0},
        {"max_attempts": None},
        {"deadline_s": -1},
        {"wait_initial_s": -0.1},
        {"wait_max_s": -1},
        {"factor": 0.5},
    ],
    ids=repr,
)
def test_a_policy_that_makes_no_sense_is_refused_when_it_is_built(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"max_attempts|negative|factor"):
        RetryPolicy(**wrong)


def test_policies_are_frozen_values() -> None:
    with pytest.raises(FrozenInstanceError):
        TRANSIENT.max_attempts = 9  # type: ignore[misc]
    assert hash(RetryPolicy(max_attempts=3)) == hash(RetryPolicy(max_attempts=3))


def test_the_defaults_are_those_of_the_contract() -> None:
    def shown(policy: RetryPolicy) -> tuple[Any, ...]:
        return policy.max_attempts, policy.wait_initial_s, policy.wait_max_s, policy.deadline_s

    assert shown(TRANSIENT) == (8, 0.005, 1, None)
    assert shown(CONFLICT) == (8, 0.01, 1, None)
    assert shown(OUTCOME) == (5, 0.05, 2, 15)
    assert shown(MODEL) == (2, 1, 60, None)
    assert NO_RETRY.max_attempts == 1
    assert RetryPolicies() == RetryPolicies(transient=TRANSIENT, conflict=CONFLICT, outcome=OUTCOME)


async def test_budgets_of_equal_value_count_apart() -> None:
    policy = RetryPolicy(max_attempts=3, wait_initial_s=0)
    errors = [StorageUnavailableError("busy"), WriteOutcomeUnknownError("cut", op_id="o")] * 2
    calls = 0

    async def call() -> str:
        nonlocal calls
        calls += 1
        if errors:
            raise errors.pop(0)
        return "landed"

    assert await retry(call, lambda error: policy) == "landed"
    assert calls == 5
