"""SessionStore: one database of sessions, opened once a process and event loop."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from cas_session import events, migrate
from cas_session.backend import Backend
from cas_session.checks import check_count, check_id
from cas_session.driver import Driver, ListSessions, Prune, SessionRow
from cas_session.errors import ConfigurationError, StoreClosedError
from cas_session.maintenance import maintain, prune_all
from cas_session.retry import RetryPolicies, Timing
from cas_session.snapshot import Version

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from cas_session.compaction.policy import CompactionPolicy
    from cas_session.compactors import CompactFunction, Compactor
    from cas_session.session import CasSession

CACHE_BYTES = 64 * 2**20
RETAIN = timedelta(days=30)
FENCE = timedelta(days=7)
SHORTEST_FENCE = timedelta(days=1)  # must outlive any request that may still be on its way


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session in a list: everything but its items. ``metadata`` is the user's own."""

    session_id: str
    version: Version
    item_count: int
    byte_count: int
    owner: str | None
    metadata: dict[str, Any] | None
    created_at: datetime
    updated_at: datetime


class SessionStore:
    """Sessions in one database, SQLite or Postgres. Use it as an async context manager, or open and close it.

    Args:
        url: ``sqlite:///chat.db``, ``postgresql://user@host/db``, as SQLAlchemy and libpq write them, or an
            AsyncEngine whose pool is to be used.
        compactor: The default of its sessions; None leaves compaction off.
        policy: The default compaction policy.
        retry: The budgets for what is tried again.
        migrate: True migrates when opened, False never; None migrates a SQLite file and checks a server.
        retain: How long hidden items can still be read and restored; 0 lets prune take them at once.
        fence: How long a write can be re-sent safely, at least one day.
        cache_bytes: Memory for what was read, so that reading it again asks only for what is new; 0: none.
        pool_size: Connections at most.
        connect_timeout_s: Seconds for a new connection.
        call_timeout_s: Seconds for one call to the database.
        maintenance_interval_s: Seconds between two prunings, on one worker of all; None leaves them to
            `prune`.
        worker: Who writes, for the audit trail; by default host and process.
        on_event: Hears the facts of `cas_session.events`.
        timing: Clock, sleep and randomness of the retry loops.
    """

    def __init__(
        self,
        url: str | URL | AsyncEngine,
        *,
        compactor: Compactor | CompactFunction | None = None,
        policy: CompactionPolicy | None = None,
        retry: RetryPolicies = RetryPolicies(),
        migrate: bool | None = None,
        retain: timedelta = RETAIN,
        fence: timedelta = FENCE,
        cache_bytes: int = CACHE_BYTES,
        pool_size: int = 10,
        connect_timeout_s: float = 10,
        call_timeout_s: float = 30,
        maintenance_interval_s: float | None = 3600,
        worker: str | None = None,
        on_event: events.Hook | None = None,
        timing: Timing = Timing(),
    ) -> None:
        if retain < timedelta(0):
            raise ValueError(f"retain must not be negative, not {retain}")
        if fence < SHORTEST_FENCE:
            raise ValueError(f"fence must be at least {SHORTEST_FENCE}, not {fence}")
        if cache_bytes < 0:
            raise ValueError(f"cache_bytes must be 0 or more, not {cache_bytes}")
        if pool_size < 1:
            raise ValueError(f"pool_size must be at least 1, not {pool_size}")
        if maintenance_interval_s is not None and maintenance_interval_s <= 0:
            raise ValueError(f"maintenance_interval_s must be above 0 or None, not {maintenance_interval_s}")
        self.compactor = compactor
        self.policy = policy
        self._driver, self._address = _driver_of(url, pool_size, connect_timeout_s, call_timeout_s)
        self._retry = retry
        self._migrate = migrate
        self._prune = Prune(retain=retain, fence=fence)
        self._call_timeout_s = call_timeout_s
        self._cache_bytes = cache_bytes
        self._maintenance_interval_s = maintenance_interval_s
        self._maintenance: asyncio.Task[None] | None = None
        self._worker = check_id("worker", worker) if worker is not None else _this_process()
        self._hook = on_event
        self._timing = timing
        self._open: Backend | None = None
        self._closed = False

    async def open(self) -> Self:
        """Connect, and migrate or check the schema.

        Raises:
            ConfigurationError: A person has to mend the URL, the server, the login or the file.
            SchemaVersionError: The tables are not the ones of this release; the text says the command.
            StorageUnavailableError: The server does not answer.
        """
        if self._open is not None or self._closed:
            raise StoreClosedError("a SessionStore is opened once: make a new one")
        await self._driver.open()
        try:
            await self._settle_schema()
        except BaseException:
            await self._driver.close()
            raise
        self._open = Backend(
            self._driver,
            policies=self._retry,
            call_timeout_s=self._call_timeout_s,
            cache_bytes=self._cache_bytes,
            worker=self._worker,
            timing=self._timing,
            hook=self._hook,
        )
        if self._maintenance_interval_s is not None:
            self._maintenance = asyncio.get_running_loop().create_task(
                maintain(self._open, self._prune, self._maintenance_interval_s)
            )
        return self

    async def aclose(self) -> None:
        """Refuse new calls, wait for what is under way, and close every connection.

        One that was cancelled can be made again; a further one does nothing.
        """
        if self._open is not None:
            self._closed = True
            if self._maintenance is not None:
                self._maintenance.cancel()
                await asyncio.wait([self._maintenance])
            await self._open.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    @property
    def backend(self) -> Backend:
        """The open database, for sessions.

        Raises:
            StoreClosedError: The store is not open.
        """
        if self._open is None:
            raise StoreClosedError("the store is not open: use `async with SessionStore(...)` or `open()`")
        if self._closed:
            raise StoreClosedError("the store is closed: make a new SessionStore")
        return self._open

    def session(
        self,
        session_id: str,
        *,
        owner: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        compactor: Compactor | CompactFunction | None = None,
        policy: CompactionPolicy | None = None,
        retry: RetryPolicies | None = None,
    ) -> CasSession:
        """A session object; no I/O. ``owner`` and ``metadata`` apply if its first write creates the session.

        Raises:
            ValueError: An id or owner that cannot be stored, or metadata that is not JSON.
        """
        from cas_session.session import CasSession  # sessions stand above the store

        return CasSession(
            self,
            session_id,
            owner=owner,
            metadata=metadata,
            compactor=compactor if compactor is not None else self.compactor,
            policy=policy if policy is not None else self.policy,
            retry=retry,
        )

    async def list_sessions(
        self,
        *,
        owner: str | None = None,
        order: Literal["created", "active"] = "created",
        limit: int = 50,
        after: SessionInfo | None = None,
    ) -> list[SessionInfo]:
        """A page of sessions, newest first, deleted ones left out.

        Args:
            owner: Only this owner's.
            order: By creation, or by the last write; the latter within one owner only.
            limit: Rows at most.
            after: The last row of the page before.
        """
        check_count("limit", limit)
        if order not in ("created", "active"):
            raise ValueError(f"order is 'created' or 'active', not {order!r}")
        if order == "active" and owner is None:
            raise ValueError("order='active' needs an owner: there is no index on the last write")
        if owner is not None:
            check_id("owner", owner)
        moment = None
        if after is not None:
            moment = (after.created_at if order == "created" else after.updated_at, after.session_id)
        query = ListSessions(owner=owner, order=order, limit=limit, after=moment)
        rows = await self.backend.call(lambda driver: driver.list_sessions(query))
        return [_info(row) for row in rows]

    async def ping(self) -> None:
        """One round trip to the database, for a readiness probe."""
        await self.backend.call(lambda driver: driver.ping())

    async def prune(self) -> int:
        """Remove what is older than ``retain`` and ``fence``, in bounded batches; return how many rows."""
        return await prune_all(self.backend, self._prune)

    async def forget(self, session_id: str) -> bool:
        """Remove every row of a deleted session, its tombstone too.

        Versions start again at 1 if the id is used again, so nothing may remember the old ones.

        Returns:
            False if it is not deleted, or a compaction that began before still runs: try again later.
        """
        check_id("session_id", session_id)
        return await self.backend.call(lambda driver: driver.forget(session_id))

    async def _settle_schema(self) -> None:
        wanted = self._migrate if self._migrate is not None else self._driver.traits.migrates_when_opened
        revision = await self._driver.schema_revision()
        if wanted and revision != migrate.HEAD:
            await self._driver.migrate()
            revision = await self._driver.schema_revision()
        migrate.check_revision(revision, self._address)


def _this_process() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def _driver_of(
    url: str | URL | AsyncEngine, pool_size: int, connect_timeout_s: float, call_timeout_s: float
) -> tuple[Driver, str]:
    """The driver of a URL or engine, and the URL without its password."""
    source: str | URL | AsyncEngine = url if isinstance(url, str | URL) else _checked_engine(url)
    if isinstance(source, str) and not _POSTGRES.match(source):
        source = _parsed(source)
    if isinstance(source, str):  # libpq's form, which the driver reads itself: several hosts with their ports
        scheme, shown = "postgresql", migrate.hide_password(source)
    else:
        address = source if isinstance(source, URL) else source.url
        scheme, shown = address.get_backend_name(), address.render_as_string(hide_password=True)
    match scheme:
        case "sqlite":
            from cas_session.drivers.sqlite import SqliteDriver

            if not isinstance(source, URL) and address.database in (None, "", ":memory:"):
                raise ConfigurationError("an engine over a database in memory cannot be shared: give its URL")
            return SqliteDriver(
                address.database or ":memory:",
                synchronous=_synchronous(address),
                call_timeout_s=call_timeout_s,
            ), shown
        case "postgres" | "postgresql":
            from cas_session.drivers.postgres import PostgresDriver

            return PostgresDriver(
                source,
                pool_size=pool_size,
                connect_timeout_s=connect_timeout_s,
                call_timeout_s=call_timeout_s,
            ), shown
        case other:
            raise ConfigurationError(f"{_SCHEMES}; {other!r} is not served")


def _parsed(url: str) -> URL:
    try:
        return make_url(url)
    except (ArgumentError, ValueError) as error:
        raise ConfigurationError(f"{_SCHEMES}; this is none: {error}") from error


def _checked_engine(engine: AsyncEngine) -> AsyncEngine:
    from sqlalchemy.ext.asyncio import AsyncEngine

    if not isinstance(engine, AsyncEngine):
        raise ConfigurationError(f"{_SCHEMES}, or an AsyncEngine; not a {type(engine).__name__}")
    return engine


def _synchronous(address: URL) -> Literal["FULL", "NORMAL"]:
    """``?synchronous=NORMAL`` trades the last commits before a power cut for speed; there are no others."""
    if unknown := address.query.keys() - {"synchronous"}:
        raise ConfigurationError(f"a SQLite URL takes only ?synchronous=FULL|NORMAL, not {sorted(unknown)}")
    named = str(address.query.get("synchronous", "FULL")).upper()
    if named not in ("FULL", "NORMAL"):
        raise ConfigurationError(f"synchronous is FULL or NORMAL, not {named!r}")
    return "NORMAL" if named == "NORMAL" else "FULL"


_POSTGRES = re.compile(r"postgres(?:ql)?(?:\+\w+)?://")
_SCHEMES = "a store needs a URL such as sqlite:///chat.db or postgresql://user@host/database"


def _info(row: SessionRow) -> SessionInfo:
    return SessionInfo(
        session_id=row.session_id,
        version=row.manifest.version,
        item_count=row.manifest.item_count,
        byte_count=row.manifest.byte_count,
        owner=row.owner,
        metadata=json.loads(row.metadata) if row.metadata is not None else None,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
