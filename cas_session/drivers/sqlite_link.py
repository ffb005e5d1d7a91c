"""One SQLite connection with its thread, and the turn that processes take to write."""

from __future__ import annotations

import asyncio
import inspect
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import aiosqlite

from cas_session.drivers.settle import settle
from cas_session.drivers.sqlite_errors import is_busy, translate_open
from cas_session.errors import ConfigurationError

if sys.platform != "win32":
    import fcntl

T = TypeVar("T")
Synchronous = Literal["FULL", "NORMAL"]

MEMORY = ":memory:"
OLDEST_SQLITE = (3, 35, 0)
TURN_POLL_S = 0.001
WAL_POLL_S = 0.01


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
        mode = self._turn_on_wal(raw)
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

    def _turn_on_wal(self, raw: sqlite3.Connection) -> str:
        """Return the journal mode that the file has then."""
        end = time.monotonic() + self._busy_timeout_s
        while True:
            try:
                (mode,) = raw.execute("PRAGMA journal_mode=WAL").fetchone()
            except sqlite3.OperationalError as error:
                # SQLite goes from a read to a write lock here, and does not wait for that one.
                if not is_busy(error) or time.monotonic() >= end:
                    raise
                time.sleep(WAL_POLL_S)
            else:
                return str(mode)


class Turn:
    """A lock file beside the database, so that processes write in turn.

    SQLite's own waiting is a lottery that starves (p99 of 215-340 ms against 28-51 ms). Nothing rests on
    this lock: who does not get it within ``bound_s``, or cannot have one, goes on without it. It is for one
    thread.
    """

    def __init__(self, path: str, *, bound_s: float) -> None:
        self._bound_s = bound_s
        self._held = False
        self._descriptor: int | None = None
        if sys.platform != "win32" and path != MEMORY:
            try:
                # A file of its own: closing a descriptor of the database drops SQLite's locks on it.
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                self._descriptor = os.open(f"{os.path.realpath(path)}-lock", flags, 0o666)
            except OSError:
                self._descriptor = None

    def __enter__(self) -> None:
        """Take the turn if it can be had."""
        self._held = self._take()

    def __exit__(self, *raised: object) -> None:
        if self._held:
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
            end = None
            while True:
                try:
                    fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    end = end or time.monotonic() + self._bound_s
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
