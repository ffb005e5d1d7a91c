"""Retry policies as frozen, named values, and the one loop that follows them. Waiting is tenacity's."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how long one kind of failure is tried again.

    The wait before attempt n+1 is drawn from [0, min(wait_max_s, wait_initial_s * factor**(n-1))] (full
    jitter, after "Exponential Backoff And Jitter", AWS Architecture Blog, 2015); without jitter it is the
    upper end.

    Attributes:
        max_attempts: The first included; None: as many as the deadline allows.
        deadline_s: Seconds from the first failure of this kind after which no new attempt is begun; None: no
            limit.
        wait_initial_s: Seconds.
        wait_max_s: Seconds, jitter included.
        factor: Growth of the wait from attempt to attempt.
        jitter: Whether waits are drawn at random.
    """

    max_attempts: int | None = 8
    deadline_s: float | None = None
    wait_initial_s: float = 0.005
    wait_max_s: float = 1.0
    factor: float = 2.0
    jitter: bool = True

    def __post_init__(self) -> None:
        if self.max_attempts is not None and self.max_attempts < 1:
            raise ValueError(f"max_attempts counts the first attempt, so at least 1, not {self.max_attempts}")
        if self.max_attempts is None and self.deadline_s is None:
            raise ValueError("a RetryPolicy needs max_attempts or deadline_s, else it never ends")
        for name in ("deadline_s", "wait_initial_s", "wait_max_s"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} must not be negative, not {value}")
        if self.factor < 1:
            raise ValueError(f"factor must be at least 1, not {self.factor}")


NO_RETRY = RetryPolicy(max_attempts=1)
"""Every failure goes to the caller at once: for callers that have a loop of their own."""

TRANSIENT = RetryPolicy(max_attempts=8, wait_initial_s=0.005, wait_max_s=1.0)
"""A write that surely did not land: a deadlock, a busy file, a connection dead before sending."""

CONFLICT = RetryPolicy(max_attempts=8, wait_initial_s=0.01, wait_max_s=1.0)
"""`update(fn)`: another write came first; load again, call fn again."""

OUTCOME = RetryPolicy(max_attempts=5, deadline_s=15, wait_initial_s=0.05, wait_max_s=2.0)
"""A write that may have landed, sent again with its op_id."""

MODEL = RetryPolicy(max_attempts=2, wait_initial_s=1.0, wait_max_s=60.0)
"""A model call that failed in a way worth repeating; each attempt may be paid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicies:
    """The budgets of a store or session; the attempts of each differ in price, so they count apart."""

    transient: RetryPolicy = TRANSIENT
    conflict: RetryPolicy = CONFLICT
    outcome: RetryPolicy = OUTCOME


@dataclass(frozen=True, slots=True)
class Timing:
    """Clock, sleep and randomness of a loop, so that a test can drive it.

    Attributes:
        clock: Monotonic seconds.
        sleep: Waits that many seconds.
        random: Draws from [0, 1).
    """

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = field(default=asyncio.sleep)
    random: Callable[[], float] = random.random


async def retry(
    call: Callable[[], Awaitable[T]],
    budget_of: Callable[[Exception], RetryPolicy | None],
    *,
    timing: Timing = Timing(),  # frozen
) -> T:
    """Call until it succeeds, fails in a way that no budget covers, or its failure's budget is spent.

    Args:
        call: One attempt.
        budget_of: The policy under which this error may be tried again; None raises it. Attempts that
            failed under different policies count apart.
        timing: Clock, sleep and randomness.

    Raises:
        Exception: The last error as it is, with a note of the attempts if there were several.
    """
    started = timing.clock()
    try:
        return await call()  # the way of nearly every call: no machinery is built for it
    except Exception as error:
        policy = budget_of(error)
        if policy is None:
            raise
        first: Exception | None = error
        ledger = _Ledger(budget_of, timing, error, policy)

    async def again() -> T:
        nonlocal first
        if first is not None:
            error, first = first, None
            raise error
        return await call()

    loop = AsyncRetrying(
        retry=retry_if_exception(ledger.may_go_on),
        wait=ledger.wait_s,
        stop=ledger.is_spent,
        sleep=timing.sleep,
        reraise=True,
    )
    try:
        return await loop(again)
    except Exception as error:
        if ledger.failures > 1:
            seconds = timing.clock() - started
            error.add_note(f"gave up after {ledger.failures} attempts in {seconds:.2f} s")
        raise


class _Ledger:
    """What one loop has spent, kind of failure by kind of failure."""

    def __init__(
        self,
        budget_of: Callable[[Exception], RetryPolicy | None],
        timing: Timing,
        first: Exception,
        policy: RetryPolicy,
    ) -> None:
        self.failures = 0
        self._first = first
        self._budget_of = budget_of
        self._timing = timing
        self._policy = policy
        # By kind of failure too: two budgets may be of equal value, and still count apart.
        self._kind: tuple[type[BaseException], RetryPolicy] = (type(first), policy)
        self._spent: dict[tuple[type[BaseException], RetryPolicy], int] = {}
        self._since: dict[tuple[type[BaseException], RetryPolicy], float] = {}

    def may_go_on(self, error: BaseException) -> bool:
        self.failures += 1
        policy = self._policy
        if error is not self._first:  # whose policy is known: each failure is judged once
            judged = self._budget_of(error) if isinstance(error, Exception) else None
            if judged is None:
                return False
            policy = judged
        self._policy = policy
        self._kind = (type(error), policy)
        self._spent[self._kind] = self._spent.get(self._kind, 0) + 1
        self._since.setdefault(self._kind, self._timing.clock())
        return True

    def wait_s(self, _: RetryCallState) -> float:
        policy = self._policy
        exponent = min(self._spent[self._kind] - 1, 64)  # a float overflows at 1024
        wait = min(policy.wait_max_s, policy.wait_initial_s * policy.factor**exponent)
        return wait * self._timing.random() if policy.jitter else wait

    def is_spent(self, state: RetryCallState) -> bool:
        policy = self._policy
        if policy.max_attempts is not None and self._spent[self._kind] >= policy.max_attempts:
            return True
        elapsed = self._timing.clock() - self._since[self._kind]
        return policy.deadline_s is not None and elapsed + state.upcoming_sleep > policy.deadline_s
