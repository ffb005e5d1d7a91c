"""Sends writes until their outcome is known: op_ids, nonces, retry budgets, and appends that go together."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Literal, TypeVar

from cas_session import codec, events
from cas_session.driver import (
    Append,
    CancelledUnitError,
    Driver,
    GroupRefusedError,
    Kind,
    Landed,
    Pop,
    Write,
)
from cas_session.drivers.settle import settle
from cas_session.errors import (
    CasSessionError,
    ConfigurationError,
    StorageUnavailableError,
    WriteOutcomeUnknownError,
)
from cas_session.retry import RetryPolicies, RetryPolicy, Timing, retry

GROUP_BYTES = 1_000_000  # a group's texts; one larger append goes alone
GROUP_MEMBERS = 64
RACES_BEFORE_LOCK = 2  # a pop that lost this often takes the row lock first

W = TypeVar("W", bound=Write)


def new_op_id() -> str:
    """A new identity for one write. It begins with the time, so that a session's ids lie close together."""
    return f"{time.time_ns():x}-{os.urandom(8).hex()}"


def new_nonce() -> str:
    return os.urandom(8).hex()


def digest(kind: Kind, op_id: str, texts: Sequence[str] = (), detail: str = "") -> bytes:
    """Names the payload of a write without telling it: the same op_id with another one is a mistake."""
    return codec.digest((detail, *texts), key=f"{kind}\0{op_id}")


class Writer:
    """Sends writes through a driver. One a store."""

    def __init__(self, driver: Driver, *, timing: Timing, hook: events.Hook | None) -> None:
        self._driver = driver
        self._timing = timing
        self._hook = hook
        self._lanes: dict[str, deque[_Queued]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def send(
        self,
        kind: Kind,
        write: W,
        verb: Callable[[W], Awaitable[Landed]],
        policies: RetryPolicies,
        *,
        sendings: int = 0,
        sent_before: bool = False,
    ) -> Landed:
        """Send a write until it lands, conflicts, or a budget is spent.

        Args:
            kind: For events.
            write: Its first sending; each further one gets a nonce of its own.
            verb: The driver's.
            policies: The budgets.
            sendings: How often it was sent already.
            sent_before: Nobody knows what became of one of them.

        Raises:
            VersionConflictError, OperationMismatchError: It did not land.
            StorageUnavailableError: It did not land, also not by an earlier sending.
            WriteOutcomeUnknownError: An earlier sending may have landed, and nobody could be asked.
        """
        attempt = sendings

        async def once() -> Landed:
            nonlocal attempt, write, sent_before
            attempt += 1
            if attempt > 1:
                write = replace(write, nonce=new_nonce(), fenced=write.fenced or sent_before)
            try:
                landed = await verb(write)
            except WriteOutcomeUnknownError as error:
                sent_before = True
                self._attempted(kind, write, attempt, "unknown", error)
                raise
            except (StorageUnavailableError, ConfigurationError) as error:
                self._attempted(kind, write, attempt, "not_landed", error)
                if not sent_before:
                    raise
                # This sending did not land; the one before it still may have.
                raise WriteOutcomeUnknownError(str(error), op_id=write.op_id) from error
            except CasSessionError as error:
                self._attempted(kind, write, attempt, "refused", error)
                raise
            except CancelledUnitError as error:
                self._cancelled(kind, write, error.error)
                raise
            self._attempted(kind, write, attempt, "landed", None)
            return landed

        def budget_of(error: Exception) -> RetryPolicy | None:
            if isinstance(error, WriteOutcomeUnknownError):
                return policies.outcome
            if isinstance(error, StorageUnavailableError) and error.transient:
                return policies.transient
            return None

        try:
            return await retry(once, budget_of, timing=self._timing)
        except CancelledUnitError:
            raise
        except asyncio.CancelledError:  # between two sendings
            if sent_before:
                self._cancelled(kind, write, WriteOutcomeUnknownError("cancelled", op_id=write.op_id))
            raise

    async def append(self, append: Append, policies: RetryPolicies) -> Landed:
        """Append; unconditional first sendings that meet on one session leave as one statement."""
        if append.expected is not None or append.fenced:
            return await self._append_alone(append, policies)
        lane = self._lanes.get(append.session_id)
        if lane is None:
            lane = self._lanes[append.session_id] = deque()
            try:
                return await self._append_alone(append, policies)
            finally:
                self._pass_on(append.session_id, lane)
        return await self._join(lane, _Queued(append, policies, asyncio.get_running_loop().create_future()))

    async def pop(self, pop: Pop, policies: RetryPolicies) -> Landed:
        """Pop; one that lost the race to other writers too often takes the row lock, so that it ends."""
        tries = count(1)

        async def verb(write: Pop) -> Landed:
            return await self._driver.pop(replace(write, locked=next(tries) > RACES_BEFORE_LOCK))

        return await self.send("pop", pop, verb, policies)

    async def drain(self) -> None:
        """Wait until every queued append is answered."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _append_alone(
        self, append: Append, policies: RetryPolicies, *, sendings: int = 0, sent_before: bool = False
    ) -> Landed:
        async def verb(write: Append) -> Landed:
            return (await self._driver.append([write]))[0]

        return await self.send("append", append, verb, policies, sendings=sendings, sent_before=sent_before)

    async def _join(self, lane: deque[_Queued], queued: _Queued) -> Landed:
        """Wait for the group. A caller cancelled while still queued is dropped; one that left is settled."""

        def withdraw() -> bool:
            if queued not in lane:
                return False
            lane.remove(queued)
            return True

        lane.append(queued)
        try:
            return await settle(queued.answer, withdraw=withdraw)
        except CancelledUnitError as error:
            if not queued.answer.cancelled():
                self._cancelled("append", queued.append, error.error)
            raise

    def _pass_on(self, session_id: str, lane: deque[_Queued]) -> None:
        if not lane:
            del self._lanes[session_id]
            return
        task = asyncio.get_running_loop().create_task(self._drain(session_id, lane))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _drain(self, session_id: str, lane: deque[_Queued]) -> None:
        group: list[_Queued] = []
        try:
            while lane:
                group = _take_group(lane)
                if len(group) == 1 or not await self._send_group(group):
                    for queued in group:
                        await self._answer_alone(queued)
                await asyncio.sleep(0)  # those who were answered may have their next append ready
        finally:
            del self._lanes[session_id]
            for queued in (*group, *lane):
                queued.answer.cancel()  # only where this task itself was cancelled: nobody may wait for ever

    async def _send_group(self, group: list[_Queued]) -> bool:
        """Send a group as one statement and answer its members; False if each must be sent alone."""
        try:
            landed = await self._driver.append([queued.append for queued in group])
        except (GroupRefusedError, StorageUnavailableError) as error:
            for queued in group:
                queued.sendings = 1
                self._attempted("append", queued.append, 1, "not_landed", error)
            return False
        except WriteOutcomeUnknownError as error:
            for queued in group:
                queued.sendings, queued.sent_before = 1, True
                self._attempted("append", queued.append, 1, "unknown", error)
            return False
        except CancelledUnitError as error:  # this task was cancelled, as when the loop ends
            for queued in group:
                self._cancelled("append", queued.append, error.error)
            raise
        except Exception as error:  # noqa: BLE001  # each member hears it, none may wait for ever
            for queued in group:
                queued.fail(error)
            return True
        for queued, result in zip(group, landed, strict=True):
            self._attempted("append", queued.append, 1, "landed", None)
            queued.answer.set_result(result)
        return True

    async def _answer_alone(self, queued: _Queued) -> None:
        try:
            queued.answer.set_result(
                await self._append_alone(
                    queued.append, queued.policies, sendings=queued.sendings, sent_before=queued.sent_before
                )
            )
        except Exception as error:  # noqa: BLE001  # its member hears it, the others go on
            queued.fail(error)

    def _attempted(
        self,
        kind: Kind,
        write: Write,
        attempt: int,
        outcome: Literal["landed", "refused", "not_landed", "unknown"],
        error: Exception | None,
    ) -> None:
        if self._hook is not None:
            events.publish(
                self._hook, events.WriteAttempt(write.session_id, kind, write.op_id, attempt, outcome, error)
            )

    def _cancelled(self, kind: Kind, write: Write, error: BaseException | None) -> None:
        outcome: Literal["landed", "not_landed", "unknown"] = "landed"
        if error is not None:
            outcome = "unknown" if isinstance(error, WriteOutcomeUnknownError) else "not_landed"
        events.publish(self._hook, events.CancelledWrite(write.session_id, kind, write.op_id, outcome))


@dataclass(slots=True, eq=False)
class _Queued:
    """An append that waits for the statement under way."""

    append: Append
    policies: RetryPolicies
    answer: asyncio.Future[Landed]
    sendings: int = 0
    sent_before: bool = False

    def fail(self, error: Exception) -> None:
        self.answer.set_exception(error)
        self.answer.exception()  # its caller may be gone


def _take_group(lane: deque[_Queued]) -> list[_Queued]:
    group = [lane.popleft()]
    size = sum(group[0].append.sizes)
    while lane and len(group) < GROUP_MEMBERS:
        size += sum(lane[0].append.sizes)
        if size > GROUP_BYTES:
            break
        group.append(lane.popleft())
    return group
