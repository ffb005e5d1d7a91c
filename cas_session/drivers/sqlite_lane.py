"""SQLite connections, each with its thread, and the queue in front of them: a unit is one hop.

A unit is a whole transaction, run as one call in a connection's thread. Appends that wait in the queue share
a transaction with a savepoint each. Nobody is answered before COMMIT returned.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sqlite3
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, cast

import aiosqlite

from cas_session.drivers.settle import settle
from cas_session.errors import (
    ConfigurationError,
    StorageUnavailableError,
    StoreClosedError,
    WriteOutcomeUnknownError,
)

if sys.platform != "win32":
    import fcntl

T = TypeVar("T")
Synchronous = Literal["FULL", "NORMAL"]

MEMORY = ":memory:"
OLDEST_SQLITE = (3, 35, 0)
GROUP_UNITS = 64  # transactions' worth of appends; more of them gain little (facts: 32 give 4x)
GROUP_BYTES = 1 << 20  # of items in one shared transaction, so that nobody waits long for it
TURN_POLL_S = 0.001
INTERRUPT_AGAIN_S = 0.05  # an interrupt that falls between two statements is lost

PERSISTENT = {
    sqlite3.SQLITE_FULL: "the disk is full: free space, then send it again",
    sqlite3.SQLITE_READONLY: "the database cannot be written: check the file's and the folder's permissions",
    sqlite3.SQLITE_IOERR: "the disk reports an error: check the disk and the file system",
    sqlite3.SQLITE_CORRUPT: "the database file is damaged: restore it from a backup",
    sqlite3.SQLITE_NOTADB: "the file is no SQLite database: check the path",
    sqlite3.SQLITE_CANTOPEN: "the database cannot be opened: check that the folder exists and can be written",
    sqlite3.SQLITE_TOOBIG: "an item is larger than SQLite takes: split it",
}
TRANSIENT = {
    sqlite3.SQLITE_BUSY: "another connection holds the database",
    sqlite3.SQLITE_LOCKED: "another connection holds a table",
    sqlite3.SQLITE_PROTOCOL: "the write-ahead log is contended",
    sqlite3.SQLITE_INTERRUPT: "the call took longer than its time and was rolled back",
    sqlite3.SQLITE_NOMEM: "SQLite has no memory",
    sqlite3.SQLITE_SCHEMA: "the schema changed meanwhile",
}


def translate(error: BaseException) -> BaseException:
    """The one place that says what a database error means. What is no database error is returned as it is."""
    if not isinstance(error, sqlite3.Error):
        return error
    primary = _primary_code(error)
    transient = primary in TRANSIENT
    what = TRANSIENT.get(primary) or PERSISTENT.get(primary) or "SQLite refused the call"
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    translated = StorageUnavailableError(f"{what} ({name}: {error})", transient=transient)
    translated.__cause__ = error
    return translated


def translate_commit(error: sqlite3.Error, op_id: str) -> Exception:
    """What a COMMIT means that failed and ended the transaction: nobody knows what stays on the disk."""
    if op_id:
        unknown: Exception = WriteOutcomeUnknownError(f"COMMIT failed ({error})", op_id=op_id)
    else:
        unknown = StorageUnavailableError(f"COMMIT failed ({error}), and sending it again does no harm")
    unknown.__cause__ = error
    return unknown


def translate_open(error: sqlite3.Error, path: str) -> Exception:
    """What keeps a file from being opened is for a person to mend, unless it is only busy."""
    if _primary_code(error) in TRANSIENT:
        failure: Exception = StorageUnavailableError(f"cannot open {path!r} ({error})")
    else:
        what = PERSISTENT.get(_primary_code(error), "SQLite refused to open it")
        failure = ConfigurationError(f"cannot use {path!r} as a database: {what} ({error})")
    failure.__cause__ = error
    return failure


def _primary_code(error: sqlite3.Error) -> int:
    """The error's code without its details; -1 for an error that Python's module raised by itself."""
    code: int = getattr(error, "sqlite_errorcode", -1)
    return code & 0xFF if code >= 0 else code


class Turn:
    """A lock file beside the database, so that processes write in turn.

    SQLite's own waiting is a lottery that starves (p99 of 215-340 ms against 28-51 ms). Nothing rests on
    this lock: who does not get it within ``bound_s``, or cannot have one, goes on without it.
    """

    def __init__(self, path: str, *, bound_s: float) -> None:
        self._bound_s = bound_s
        self._descriptor: int | None = None
        if sys.platform != "win32" and path != MEMORY:
            try:
                # A file of its own: closing a descriptor of the database drops SQLite's locks on it.
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                self._descriptor = os.open(f"{os.path.realpath(path)}-lock", flags, 0o666)
            except OSError:
                self._descriptor = None

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Hold the turn if it can be had."""
        held = self._take()
        try:
            yield
        finally:
            if held:
                self._give()

    def close(self) -> None:
        """Let the lock file go. It is never removed: another process may wait on it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    if sys.platform != "win32":

        def _take(self) -> bool:
            if self._descriptor is None:
                return False
            end = time.monotonic() + self._bound_s
            while True:
                try:
                    fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if time.monotonic() >= end:
                        return False
                    time.sleep(TURN_POLL_S)
                except OSError:
                    return False
                else:
                    return True

        def _give(self) -> None:
            if self._descriptor is not None:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    else:

        def _take(self) -> bool:
            return False

        def _give(self) -> None:
            pass


class Link:
    """One connection and its thread."""

    def __init__(
        self, path: str, *, synchronous: Synchronous, busy_timeout_s: float, query_only: bool = False
    ) -> None:
        self.raw: sqlite3.Connection | None = None
        self._failure: Exception | None = None
        self._path = path
        self._synchronous = synchronous
        self._busy_timeout_s = busy_timeout_s
        self._query_only = query_only
        # One private method of aiosqlite is used: _execute, the only way to run a whole unit in one hop.
        if not inspect.iscoroutinefunction(getattr(aiosqlite.Connection, "_execute", None)):
            raise ConfigurationError("this aiosqlite has no Connection._execute any more: install 0.22")
        self._proxy = aiosqlite.Connection(self._connect, 64)
        thread = getattr(self._proxy, "_thread", self._proxy)
        if isinstance(thread, threading.Thread):
            thread.daemon = True  # a process that forgot to close may end all the same

    async def open(self) -> None:
        """Connect, in the thread.

        Raises:
            ConfigurationError: Somebody has to mend something.
            StorageUnavailableError: The file is busy.
        """
        await settle(self._open())

    async def close(self) -> None:
        """End the thread; a link that is not open stays as it is."""
        await self._proxy.close()

    def hop(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run ``work`` in the thread. The future is no task: an ending loop does not cancel it."""
        proxy: Any = self._proxy
        call = proxy._execute(work)
        answer: Any = call.send(None)  # it runs up to where it waits for the thread
        call.close()
        if not asyncio.isfuture(answer):
            raise ConfigurationError(
                "this aiosqlite's Connection._execute works in another way: install 0.22"
            )
        answer._asyncio_future_blocking = False  # nobody waits for it yet
        return cast("asyncio.Future[T]", answer)

    def interrupt(self) -> None:
        """End the statement that runs in the thread, if one does."""
        if self.raw is not None:
            self.raw.interrupt()

    async def _open(self) -> None:
        await self._proxy
        if self._failure is not None:
            await self.close()
            raise self._failure
        await self.hop(int)  # a first one, that does nothing: it shows that hops work

    def _connect(self) -> sqlite3.Connection:
        """Connect and prepare. A failure is kept: aiosqlite does not wait for the thread of a connect that
        failed, but it does for one that is closed."""
        try:
            # The busy timeout comes first: without it, two that turn on WAL at once fail.
            raw = sqlite3.connect(self._path, timeout=self._busy_timeout_s, isolation_level=None)
        except sqlite3.Error as error:
            return self._failed(error)
        try:
            self._prepare(raw)
        except (sqlite3.Error, ConfigurationError) as error:
            raw.close()
            return self._failed(error)
        self.raw = raw
        return raw

    def _failed(self, error: sqlite3.Error | ConfigurationError) -> sqlite3.Connection:
        self._failure = error if isinstance(error, ConfigurationError) else translate_open(error, self._path)
        return sqlite3.connect(MEMORY)

    def _prepare(self, raw: sqlite3.Connection) -> None:
        if self._path == MEMORY:
            return
        (mode,) = raw.execute("PRAGMA journal_mode=WAL").fetchone()
        if mode != "wal":
            raise ConfigurationError(
                f"cannot use {self._path!r} as a database: its file system does not support SQLite's "
                f"write-ahead log (journal mode is {mode!r}): put it on a local disk"
            )
        if self._synchronous == "FULL":
            raw.execute("PRAGMA synchronous=FULL")
        else:
            raw.execute("PRAGMA synchronous=NORMAL")
        if self._query_only:
            raw.execute("PRAGMA query_only=ON")


def check_file(path: str) -> None:
    """Refuse what cannot be a database that is written to.

    Raises:
        ConfigurationError: It says what to mend.
    """
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise ConfigurationError(f"SQLite {sqlite3.sqlite_version} is too old: 3.35 or newer is needed")
    if path == MEMORY:
        return
    try:
        why = _fault(Path(path))
    except OSError as error:
        why = str(error)
    if why:
        raise ConfigurationError(f"cannot use {path!r} as a database: {why}")


def _fault(file: Path) -> str | None:
    if file.is_dir():
        return "it is a folder, give the path of a file"
    if not file.parent.is_dir():
        return f"the folder {str(file.parent)!r} is missing"
    for place in (file, file.parent):
        if place.exists() and not os.access(place, os.W_OK):
            return f"{str(place)!r} cannot be written"
    return None


def _answer(answer: asyncio.Future[T], result: T) -> None:
    if not answer.done():
        answer.set_result(result)


def _answer_error(answer: asyncio.Future[Any], error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error)


class Unit(Generic[T]):
    """One transaction: ``work`` runs in it, in the connection's thread.

    Args:
        begin: The statement that begins it; None if ``work`` begins and ends it by itself.
        op_id: The write's identity, if it has one.
        joins: Whether it may share a transaction with others.
        size: Bytes of its items.
    """

    __slots__ = ("answer", "begin", "expired", "joins", "link", "op_id", "size", "timer", "work")

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
        self.answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.link: Link | None = None  # the connection that has begun it
        self.expired = False
        self.timer: asyncio.TimerHandle | None = None


class Lane:
    """Connections of one kind with one queue in front. Units begin in the order in which they came."""

    def __init__(self, links: Sequence[Link], *, turn: Turn | None, call_timeout_s: float) -> None:
        self._links = links
        self._idle = list(links)
        self._turn = turn
        self._call_timeout_s = call_timeout_s
        self._queue: deque[Unit[Any]] = deque()
        self._closed = False
        self._quiet = asyncio.Event()
        self._quiet.set()

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
        self._queue.append(unit)
        if bounded:
            unit.timer = asyncio.get_running_loop().call_later(self._call_timeout_s, self._expire, unit)
        self._advance()
        try:
            return await settle(unit.answer, withdraw=partial(self._withdraw, unit))
        finally:
            if unit.timer is not None:
                unit.timer.cancel()

    def shut(self) -> None:
        """Refuse new units from now on."""
        self._closed = True

    async def close(self) -> None:
        """Wait for the units that are there, then end the threads."""
        self.shut()
        await self._quiet.wait()
        async with AsyncExitStack() as stack:
            if self._turn is not None:
                stack.callback(self._turn.close)
            for link in self._links:
                stack.push_async_callback(link.close)

    def _advance(self) -> None:
        while self._idle and self._queue:
            link = self._idle.pop()
            units = self._take()
            for unit in units:
                unit.link = link
            answer = link.hop(partial(_run, link, units, self._turn))
            answer.add_done_callback(partial(self._finish, link, units))
        if self._queue or len(self._idle) < len(self._links):
            self._quiet.clear()
        else:
            self._quiet.set()

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

    def _finish(self, link: Link, units: list[Unit[Any]], hop: asyncio.Future[list[Any]]) -> None:
        self._idle.append(link)
        error = hop.exception()
        outcomes = hop.result() if error is None else [translate(error)] * len(units)
        for unit, outcome in zip(units, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                _answer_error(unit.answer, outcome)
            else:
                _answer(unit.answer, outcome)
        self._advance()

    def _withdraw(self, unit: Unit[Any]) -> bool:
        """Drop the unit if it still waits; say whether it did."""
        if unit.link is not None:
            return False
        self._queue.remove(unit)
        self._advance()
        return True

    def _expire(self, unit: Unit[Any]) -> None:
        """Its time is over: drop it if it waits, interrupt it if it was begun."""
        if unit.answer.done():
            return
        unit.expired = True
        if self._withdraw(unit):
            after = f"after {self._call_timeout_s:g} s in the queue"
            _answer_error(unit.answer, StorageUnavailableError(f"the call was not begun {after}"))
        elif unit.link is not None:
            unit.link.interrupt()
            unit.timer = asyncio.get_running_loop().call_later(INTERRUPT_AGAIN_S, self._expire, unit)


def _run(link: Link, units: list[Unit[Any]], turn: Turn | None) -> list[Any]:
    """Run units that were taken together, in the connection's thread; return results and exceptions."""
    assert link.raw is not None
    if turn is None or units[0].begin == "BEGIN":
        return [_run_alone(link.raw, unit) for unit in units]
    with turn.taken():
        if len(units) > 1:
            outcomes = _run_together(link.raw, units)
            if outcomes is not None:
                return outcomes
        return [_run_alone(link.raw, unit) for unit in units]


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
        return _not_committed(raw, error, unit)
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
        failed = _not_committed(raw, error, units[0])
        # What a member saw that was refused may have been another one's write: it is asked to come again.
        return [
            StorageUnavailableError(str(failed))
            if isinstance(outcome, BaseException) or isinstance(failed, StorageUnavailableError)
            else translate_commit(error, unit.op_id)
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


def _not_committed(raw: sqlite3.Connection, error: sqlite3.Error, unit: Unit[Any]) -> BaseException:
    if not raw.in_transaction:
        return translate_commit(error, unit.op_id)
    _roll_back(raw)  # it is still open (SQLITE_BUSY leaves it so): nothing of it landed
    return translate(error)


def _roll_back(raw: sqlite3.Connection) -> None:
    """Leave no transaction open, whatever happened."""
    if raw.in_transaction:
        raw.execute("ROLLBACK")
