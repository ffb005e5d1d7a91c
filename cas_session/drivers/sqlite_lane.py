"""The queue in front of SQLite connections: a unit is a whole transaction, run as one hop.

Appends that wait in the queue share a transaction with a savepoint each. Nobody is answered before COMMIT
returned.
"""

from __future__ import annotations

import asyncio
import math
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Generic, TypeVar

from cas_session.drivers.settle import settle
from cas_session.drivers.sqlite_errors import translate, translate_commit
from cas_session.drivers.sqlite_link import Link, Turn
from cas_session.errors import StorageUnavailableError, StoreClosedError

T = TypeVar("T")

GROUP_UNITS = 64  # appends in one shared transaction: with 32 of them the gain is 4x, with more it is small
GROUP_BYTES = 1 << 20  # of items in one shared transaction, so that nobody waits long for it
INTERRUPT_AGAIN_S = 0.05  # an interrupt that falls between two statements is lost


class Unit(Generic[T]):
    """One transaction: ``work`` runs in it, in the connection's thread.

    Args:
        begin: The statement that begins it; None if ``work`` begins and ends it by itself.
        op_id: The write's identity, if it has one.
        joins: Whether it may share a transaction with others.
        size: Bytes of its items.
    """

    __slots__ = ("answer", "begin", "expired", "joins", "link", "op_id", "size", "work")

    answer: asyncio.Future[T]  # of one that waits in the queue

    def __init__(
        self,
        work: Callable[[sqlite3.Connection], T],
        *,
        begin: str | None,
        op_id: str = "",
        joins: bool = False,
        size: int = 0,
    ) -> None:
        self.work = work
        self.begin = begin
        self.op_id = op_id
        self.joins = joins
        self.size = size
        self.link: Link | None = None  # the connection that has begun it
        self.expired = False


class Lane:
    """Connections of one kind with one queue in front. Units begin in the order in which they came."""

    def __init__(self, links: Sequence[Link], *, turn: Turn | None, call_timeout_s: float) -> None:
        self._links = links
        self._idle = list(links)
        self._turn = turn
        self._call_timeout_s = call_timeout_s
        self._queue: deque[Unit[Any]] = deque()
        self._ends: dict[Unit[Any], float] = {}  # when the time of each that is here is over, soonest first
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._quiet = asyncio.Event()

    async def run(self, unit: Unit[T], *, bounded: bool = True) -> T:
        """Run the unit and return what it returned or raise what it raised.

        Raises:
            StorageUnavailableError: It did not land; among others, its time was over while it waited.
            WriteOutcomeUnknownError: Its COMMIT failed on the disk.
            asyncio.CancelledError: The caller was cancelled. A unit that waited was dropped, one that was
                begun has ended.
        """
        if self._closed:
            raise StoreClosedError("the database is closed")
        loop = asyncio.get_running_loop()
        if bounded:
            self._bound(unit, loop)
        if self._idle:  # so nobody waits, and the answer of the thread is the unit's own
            return await settle(self._begin([unit], _run_one, None))
        unit.answer = loop.create_future()
        self._queue.append(unit)
        return await settle(unit.answer, withdraw=partial(self._withdraw, unit))

    def shut(self) -> None:
        """Refuse new units from now on."""
        self._closed = True

    async def close(self) -> None:
        """Wait for the units that are there, then end the threads."""
        self.shut()
        if self._is_busy():
            await self._quiet.wait()
        if self._timer is not None:
            self._timer.cancel()
        async with AsyncExitStack() as stack:
            if self._turn is not None:
                stack.callback(self._turn.close)
            for link in self._links:
                stack.push_async_callback(link.close)

    def _is_busy(self) -> bool:
        return bool(self._queue) or len(self._idle) < len(self._links)

    def _advance(self) -> None:
        while self._idle and self._queue:
            units = self._take()
            self._begin(units, _run, partial(_answer_all, units))
        if self._closed and not self._is_busy():
            self._quiet.set()

    def _begin(
        self,
        units: list[Unit[Any]],
        run: Callable[[sqlite3.Connection, list[Unit[Any]], Turn | None], T],
        answer: Callable[[asyncio.Future[T]], None] | None,
    ) -> asyncio.Future[T]:
        link = self._idle.pop()
        assert link.raw is not None
        for unit in units:
            unit.link = link
        hop = link.hop(partial(run, link.raw, units, self._turn))
        if answer is not None:
            hop.add_done_callback(answer)
        hop.add_done_callback(partial(self._end, link, units))
        return hop

    def _end(self, link: Link, units: list[Unit[Any]], _: asyncio.Future[Any]) -> None:
        for unit in units:
            self._ends.pop(unit, None)
        if units[0].joins and (self._queue or len(units) > 1):
            # Those who are answered now may have their next append ready, which joins the next group.
            asyncio.get_running_loop().call_soon(self._free, link)
        else:
            self._free(link)

    def _free(self, link: Link) -> None:
        self._idle.append(link)
        self._advance()

    def _take(self) -> list[Unit[Any]]:
        """The first unit, and if it shares its transaction, those right behind it that do, too."""
        units = [self._queue.popleft()]
        size = units[0].size
        while units[0].joins and self._queue and self._queue[0].joins and len(units) < GROUP_UNITS:
            size += self._queue[0].size
            if size > GROUP_BYTES:
                break
            units.append(self._queue.popleft())
        return units

    def _withdraw(self, unit: Unit[Any]) -> bool:
        """Drop the unit if it still waits; say whether it did."""
        if unit.link is not None:
            return False
        self._queue.remove(unit)
        self._ends.pop(unit, None)
        self._advance()
        return True

    def _bound(self, unit: Unit[Any], loop: asyncio.AbstractEventLoop) -> None:
        """Let the unit's time run. One timer serves all: who came first ends first."""
        self._ends[unit] = end = loop.time() + self._call_timeout_s
        if self._timer is None:
            self._timer = loop.call_at(end, self._expire)

    def _expire(self) -> None:
        """Look for units whose time is over: drop one that waits, interrupt one that was begun."""
        loop = asyncio.get_running_loop()
        now, again = loop.time(), math.inf
        for unit, end in list(self._ends.items()):
            if end > now:
                again = min(again, end)
                break
            unit.expired = True
            if unit.link is not None:
                unit.link.interrupt()
                again = now + INTERRUPT_AGAIN_S
            elif self._withdraw(unit):
                after = f"after {self._call_timeout_s:g} s in the queue"
                _answer_error(unit.answer, StorageUnavailableError(f"the call was not begun {after}"))
        self._timer = loop.call_at(again, self._expire) if self._ends else None


def _run_one(raw: sqlite3.Connection, units: list[Unit[T]], turn: Turn | None) -> T:
    """Run one unit, in the connection's thread; return what it returned or raise what it raised."""
    (outcome,) = _run(raw, units, turn)
    if isinstance(outcome, BaseException):
        raise outcome
    result: T = outcome
    return result


def _run(raw: sqlite3.Connection, units: list[Unit[Any]], turn: Turn | None) -> list[Any]:
    """Run units that were taken together, in the connection's thread; return results and exceptions."""
    if turn is None or units[0].begin == "BEGIN":
        return [_run_alone(raw, unit) for unit in units]
    with turn:
        if len(units) > 1:
            outcomes = _run_together(raw, units)
            if outcomes is not None:
                return outcomes
        return [_run_alone(raw, unit) for unit in units]


def _run_alone(raw: sqlite3.Connection, unit: Unit[Any]) -> Any:
    try:
        if unit.begin is not None:
            raw.execute(unit.begin)
        if unit.expired:
            raise StorageUnavailableError("the call's time was over before it was begun")
        result = unit.work(raw)
    except BaseException as error:  # noqa: BLE001  # it is raised where the unit is awaited
        _roll_back(raw)
        return translate(error)
    if not raw.in_transaction:
        return result
    try:
        raw.execute("COMMIT")
    except sqlite3.Error as error:
        return _uncommitted(error, unit, ended=_roll_back(raw))
    return result


def _run_together(raw: sqlite3.Connection, units: list[Unit[Any]]) -> list[Any] | None:
    """Run the units in one transaction; None if it broke, so that each has to run alone."""
    try:
        raw.execute("BEGIN IMMEDIATE")
    except sqlite3.Error as error:
        return [translate(error) for _ in units]
    try:
        outcomes = [_run_member(raw, unit) for unit in units]
    except sqlite3.Error:
        _roll_back(raw)
        return None
    if not raw.in_transaction:
        return None
    try:
        raw.execute("COMMIT")
    except sqlite3.Error as error:
        ended = _roll_back(raw)
        return [
            # What a refused member saw may have been another one's write, which is gone.
            translate(error) if isinstance(outcome, BaseException) else _uncommitted(error, unit, ended=ended)
            for unit, outcome in zip(units, outcomes, strict=True)
        ]
    return outcomes


def _run_member(raw: sqlite3.Connection, unit: Unit[Any]) -> Any:
    """Run one unit between savepoints.

    Raises:
        sqlite3.Error: The whole transaction is gone.
    """
    raw.execute("SAVEPOINT member")
    try:
        if unit.expired:
            raise StorageUnavailableError("the call's time was over before it was begun")
        outcome = unit.work(raw)
    except BaseException as error:  # it is raised where the unit is awaited
        # Some errors end the transaction, and then what is left of the group would land by itself.
        if not raw.in_transaction:
            raise sqlite3.OperationalError("the transaction was rolled back") from error
        raw.execute("ROLLBACK TO member")
        outcome = translate(error)
    raw.execute("RELEASE member")
    return outcome


def _uncommitted(error: sqlite3.Error, unit: Unit[Any], *, ended: bool) -> BaseException:
    """What a failed COMMIT means. One that left the transaction open (SQLITE_BUSY) has landed nothing."""
    return translate_commit(error, unit.op_id) if ended else translate(error)


def _roll_back(raw: sqlite3.Connection) -> bool:
    """Leave no transaction open, whatever happened; say whether none was."""
    if not raw.in_transaction:
        return True
    raw.execute("ROLLBACK")
    return False


def _answer_all(units: list[Unit[Any]], hop: asyncio.Future[list[Any]]) -> None:
    error = hop.exception()
    outcomes = hop.result() if error is None else [translate(error)] * len(units)
    for unit, outcome in zip(units, outcomes, strict=True):
        if isinstance(outcome, BaseException):
            _answer_error(unit.answer, outcome)
        else:
            _answer(unit.answer, outcome)


def _answer(answer: asyncio.Future[T], result: T) -> None:
    if not answer.done():
        answer.set_result(result)


def _answer_error(answer: asyncio.Future[Any], error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error)
