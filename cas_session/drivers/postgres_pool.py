"""Where connections come from: asyncpg's pool for a URL, or the pool of the user's AsyncEngine.

A connection is in autocommit and is not reset between two units, for no unit leaves anything behind. Time is
bounded by the timeout of each statement and not by asyncio.timeout; see `settle_here`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Protocol, TypeVar

import asyncpg
from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool, PoolProxiedConnection
from sqlalchemy.util import greenlet_spawn

from cas_session.drivers.postgres_errors import connecting, ends_connection, translated
from cas_session.drivers.postgres_url import connect_arguments
from cas_session.errors import ConfigurationError

T = TypeVar("T")

IDLE_S = 1.0  # after which a connection at hand goes back to asyncpg's pool

BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"


class Link:
    """A connection that one unit has for itself. Every error of a statement is translated here.

    Each method takes the op_id of the write that its statement commits, or None if what it does is undone
    or may be done twice; see `translated`.
    """

    def __init__(self, connection: Any, timeout_s: float) -> None:
        self.connection = connection
        self._timeout_s = timeout_s
        self._is_broken = False
        self._is_given_up = False  # a statement, which asyncpg still cancels

    async def row(self, sql: str, *arguments: Any, op_id: str | None = None) -> Any:
        """The first row of a statement; None if there is none."""
        return await self._answer(
            lambda: self.connection.fetchrow(sql, *arguments, timeout=self._timeout_s), op_id
        )

    async def rows(self, sql: str, *arguments: Any) -> Sequence[Any]:
        """Every row of a statement that reads."""
        return await self._answer(
            lambda: self.connection.fetch(sql, *arguments, timeout=self._timeout_s), None
        )

    @asynccontextmanager
    async def transaction(self, op_id: str | None = None) -> AsyncIterator[None]:
        """A transaction in READ COMMITTED, whatever the default is. Its COMMIT is what may be lost."""
        await self._command(BEGIN, None)
        try:
            yield
        except BaseException:
            # The first error counts. Where this one fails the connection is ended, and the server rolls back.
            # A task of its own, for asyncpg waits by asyncio.timeout for a statement that it cancels.
            with suppress(Exception):
                await asyncio.create_task(self._roll_back())
            raise
        await self._command("COMMIT", op_id)

    async def give_back(self) -> None:
        """Give the connection back, or end it if it is broken. Never raises, for the unit's result stands."""
        raise NotImplementedError

    async def _roll_back(self) -> None:
        async with asyncio.timeout(self._timeout_s):
            await self._command("ROLLBACK", None)

    async def _command(self, sql: str, op_id: str | None) -> None:
        """If it fails nobody knows whether a transaction is open, so the connection is ended."""
        try:
            await self._answer(lambda: self.connection.execute(sql, timeout=self._timeout_s), op_id)
        except BaseException:
            self._is_broken = True
            raise

    async def _answer(self, statement: Callable[[], Awaitable[T]], op_id: str | None) -> T:
        """Await what ``statement`` makes. Making it may raise already: asyncpg's pool takes a connection back
        that died since it was given out."""
        try:
            return await statement()
        except asyncio.CancelledError:
            self._is_given_up = True
            raise
        except Exception as error:
            self._is_given_up |= isinstance(error, TimeoutError)
            self._is_broken |= ends_connection(error)
            raise translated(error, op_id) from error


class Pool(Protocol):
    """Connections, a bounded number of them."""

    async def open(self) -> None: ...

    async def close(self) -> None:
        """Close every connection; nothing is under way any more."""

    async def take(self) -> Link:
        """Wait for a connection, at most the call's time. Cancelling this leaves nothing behind.

        Raises:
            ConfigurationError, StorageUnavailableError: Nothing was sent.
        """

    def transaction(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """A transaction of SQLAlchemy's, for migrations. Whoever waits in it then sees what was done."""


class OwnPool:
    """A pool of asyncpg's, and the connections at hand: those that it gave out and nobody uses just now.

    To give a connection back to asyncpg and take it again costs as much time as a small statement.
    """

    def __init__(
        self, url: str | URL, *, pool_size: int, connect_timeout_s: float, call_timeout_s: float
    ) -> None:
        self._arguments = {"timeout": connect_timeout_s, **connect_arguments(url)}
        self._pool_size = pool_size
        self._call_timeout_s = call_timeout_s
        self._pool: Any = None
        self._at_hand: list[Any] = []
        self._waiting = 0  # calls, for asyncpg's pool
        self._timer: asyncio.TimerHandle | None = None
        self._returning: asyncio.Task[None] | None = None

    async def open(self) -> None:
        with connecting():
            self._pool = await asyncpg.create_pool(
                min_size=0,
                max_size=self._pool_size,
                reset=_no_reset,  # asyncpg's own doubles the round trips
                **self._arguments,
            )

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pool is None:
            return
        try:
            async with asyncio.timeout(self._call_timeout_s):
                await self._return_all()
                await self._pool.close()
        except TimeoutError:
            self._pool.terminate()  # what did not say goodbye

    async def take(self) -> Link:
        while self._at_hand:
            connection = self._at_hand.pop()
            if not _is_dead(connection):
                return _OwnLink(self, connection, self._call_timeout_s)
            await self._return(connection)
        self._waiting += 1
        try:
            with connecting():
                connection = await self._pool.acquire(timeout=self._call_timeout_s)
        finally:
            self._waiting -= 1
        return _OwnLink(self, connection, self._call_timeout_s)

    async def give_back(self, connection: Any, *, is_settled: bool) -> None:
        """Keep a connection at hand, or if somebody waits for one, let asyncpg pass it on."""
        if self._waiting or not is_settled or _is_dead(connection):
            await self._return(connection)
            return
        self._at_hand.append(connection)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(IDLE_S, self._return_idle)

    def _return_idle(self) -> None:
        self._timer = None
        self._returning = asyncio.get_running_loop().create_task(self._return_all())

    async def _return_all(self) -> None:
        while self._at_hand:
            await self._return(self._at_hand.pop())

    async def _return(self, connection: Any) -> None:
        with suppress(Exception):  # asyncpg ends a connection that it cannot take back
            await self._pool.release(connection)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """On a connection beside the pool, so that a pool of one is no dead end."""

        async def connect(*_: Any, **__: Any) -> Any:
            return await asyncpg.connect(**self._arguments)

        engine = create_async_engine(
            "postgresql+asyncpg://",
            async_creator=connect,
            poolclass=NullPool,
            # Statements without a name, so that a transaction pooler cannot mix them up.
            connect_args={"prepared_statement_cache_size": 0, "prepared_statement_name_func": str},
        )
        async with engine.execution_options(isolation_level="READ COMMITTED").begin() as connection:
            yield connection


class EnginePool:
    """The pool of the user's AsyncEngine. Statements run on the driver's connection, below SQLAlchemy."""

    def __init__(self, engine: AsyncEngine, *, call_timeout_s: float) -> None:
        if engine.dialect.driver != "asyncpg":
            raise ConfigurationError(
                f"the engine must use asyncpg (postgresql+asyncpg://...), not {engine.dialect.driver}"
            )
        self._engine = engine
        self._call_timeout_s = call_timeout_s

    async def open(self) -> None:
        """Nothing: the engine's connections are opened and closed by the user."""

    async def close(self) -> None:
        """Nothing, as for `open`."""

    async def take(self) -> Link:
        with connecting():
            async with asyncio.timeout(self._call_timeout_s):
                raw = await self._engine.raw_connection()
                # SQLAlchemy sees that a connection died only when it runs a statement itself.
                while raw.driver_connection is not None and raw.driver_connection.is_closed():
                    await greenlet_spawn(raw.invalidate)
                    raw = await self._engine.raw_connection()
        return _EngineLink(raw, self._call_timeout_s)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        engine = self._engine.execution_options(isolation_level="READ COMMITTED")
        async with engine.begin() as connection:
            yield connection


class _OwnLink(Link):
    def __init__(self, pool: OwnPool, connection: Any, timeout_s: float) -> None:
        super().__init__(connection, timeout_s)
        self._pool = pool

    async def give_back(self) -> None:
        if self._is_broken:
            with suppress(asyncpg.InterfaceError):  # it was ended and taken from us already
                self.connection.terminate()
        await self._pool.give_back(self.connection, is_settled=not self._is_given_up)


class _EngineLink(Link):
    def __init__(self, raw: PoolProxiedConnection, timeout_s: float) -> None:
        super().__init__(raw.driver_connection, timeout_s)
        self._raw = raw

    async def give_back(self) -> None:
        # In a task of its own, for SQLAlchemy and asyncpg bound what they wait for here by asyncio.timeout.
        with suppress(Exception):  # as above
            await asyncio.shield(self._give_back())

    async def _give_back(self) -> None:
        if self._is_broken or self._is_given_up:
            self.connection.terminate()  # a close would wait for a server that may never answer
        if self.connection.is_closed():
            await greenlet_spawn(self._raw.invalidate)
        await greenlet_spawn(self._raw.close)


async def _no_reset(_: Any) -> None:
    """No unit leaves anything to reset."""


def _is_dead(connection: Any) -> bool:
    try:
        closed: bool = connection.is_closed()
    except asyncpg.InterfaceError:  # it died while nobody looked, and asyncpg's pool has it back
        return True
    return closed
