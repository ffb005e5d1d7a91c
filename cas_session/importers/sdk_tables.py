"""The tables of openai-agents: SQLiteSession, AsyncSQLiteSession, SQLAlchemySession; on SQLite and Postgres.

A source is read in one read-only transaction, so that the import is of what it held at one moment
(REPEATABLE READ on Postgres, a snapshot of the write-ahead log on SQLite).
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import parse_qsl, quote, urlencode

import aiosqlite
import asyncpg
from sqlalchemy import (
    Connection,
    Integer,
    Select,
    String,
    Text,
    bindparam,
    column,
    event,
    inspect,
    select,
    table,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from cas_session.errors import ConfigurationError, StorageUnavailableError
from cas_session.importers.source import Conversations, Row, encode, parse, printable
from cas_session.migrate import hide_password

Order = Literal["id", "created_at"]
ORDERS: tuple[Order, ...] = get_args(Order)

MESSAGES_TABLE = "agent_messages"
BRANCHES_TABLE = "message_structure"  # of AdvancedSQLiteSession
FETCH_ROWS = 50

ReadError = (SQLAlchemyError, OSError, sqlite3.Error, asyncpg.PostgresError, asyncpg.InterfaceError)


class SdkTables:
    """The conversations in a database of openai-agents.

    Args:
        url: ``sqlite:///FILE`` or ``postgresql://...``, in the forms that a store takes.
        messages_table: As it was given to the SDK's session.
        order: How the SDK's session reads: ``id`` (SQLiteSession, AsyncSQLiteSession) or ``created_at``, then
            id (SQLAlchemySession). None: SQLAlchemySession on Postgres; on SQLite the index tells who made
            the table.
        name: The source's identity; by default it is made from the address and the table.
    """

    def __init__(
        self,
        url: str,
        *,
        messages_table: str = MESSAGES_TABLE,
        order: Order | None = None,
        name: str | None = None,
    ) -> None:
        if order is not None and order not in ORDERS:
            raise ValueError(f"order is one of {ORDERS}, not {order!r}")
        self._url = url
        self._messages_table = messages_table
        self._order = order
        self.name = name if name is not None else f"{_address(url)}#{messages_table}"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Conversations]:
        """Open it for reading.

        Raises:
            ConfigurationError: The database or the table is not there, or nobody can tell its order.
        """
        shown = hide_password(self._url)
        engine = _engine(self._url)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(engine.dispose)
            with _opening(shown):
                connection = await stack.enter_async_context(engine.connect())
                await connection.execution_options(**SNAPSHOT[engine.dialect.name])
                order = await connection.run_sync(self._find_order)
            yield _Tables(connection, self._messages_table, order, shown)

    def _find_order(self, connection: Connection) -> Order:
        found = inspect(connection)
        name = self._messages_table
        if not found.has_table(name):
            raise ConfigurationError(
                f"{hide_password(self._url)} has no table {name!r}: "
                "give the messages table of the SDK's sessions"
            )
        order = self._order or self._detect_order(connection)
        columns = {"id", "session_id", "message_data", order}
        if missing := columns - {str(known["name"]) for known in found.get_columns(name)}:
            raise ConfigurationError(
                f"the table {name!r} has no column {', '.join(sorted(missing))}: it is not the SDK's"
            )
        return order

    def _detect_order(self, connection: Connection) -> Order:
        found = inspect(connection)
        name = self._messages_table
        if connection.dialect.name != "sqlite":
            return "created_at"
        if found.has_table(BRANCHES_TABLE):
            raise ConfigurationError(
                f"{name!r} is an AdvancedSQLiteSession's, with branches, which cannot be told apart here: "
                "order id takes the rows of all branches"
            )
        indexes = {str(index["name"]).lower() for index in found.get_indexes(name)}
        plain = f"idx_{name}_session_id".lower() in indexes
        if plain and f"idx_{name}_session_time".lower() in indexes:
            raise ConfigurationError(
                f"{name!r} was used by SQLiteSession and by SQLAlchemySession, which read it in different "
                "orders: say order id or order created_at"
            )
        return "id" if plain else "created_at"


class _Tables:
    """The open tables."""

    def __init__(self, connection: AsyncConnection, name: str, order: Order, shown: str) -> None:
        messages = table(
            name,
            column("id", Integer),
            column("session_id", String),
            column("message_data", Text),
            column("created_at"),
        )
        ordered = [messages.c.id] if order == "id" else [messages.c.created_at, messages.c.id]
        self.table = name
        self._connection = connection
        self._shown = shown
        self._ids = select(messages.c.session_id).distinct().order_by(messages.c.session_id)
        self._rows = (
            select(messages.c.id, messages.c.message_data)
            .where(messages.c.session_id == bindparam("session_id"))
            .order_by(*ordered)
        )

    async def session_ids(self) -> AsyncGenerator[str | None, None]:
        async for (session_id,) in self._stream(self._ids):
            yield session_id

    async def rows(self, session_id: str | None) -> AsyncGenerator[Row, None]:
        async for row_id, data in self._stream(self._rows, session_id=session_id):
            yield _row(row_id, data)

    async def _stream(self, statement: Select[Any], **parameters: Any) -> AsyncGenerator[Any, None]:
        with _reading(self._shown):
            result = await self._connection.stream(
                statement, parameters, execution_options={"yield_per": FETCH_ROWS}
            )
            try:
                async for row in result:
                    yield row
            finally:
                await result.close()


# What makes a transaction a snapshot that cannot write; a SQLite file is opened for reading only.
SNAPSHOT: dict[str, dict[str, Any]] = {
    "postgresql": {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True},
    "sqlite": {},
}


def _row(row_id: int, data: object) -> Row:
    try:
        if not isinstance(data, str):
            raise ValueError(f"a {type(data).__name__} is no text")
        if _is_no_utf8(data):
            raise ValueError("it is no UTF-8")
        item = parse(data)
        return Row(key=row_id, number=row_id, raw=data, item=item, text=encode(item))
    except ValueError as error:
        return Row(key=row_id, number=row_id, raw=printable(data), why=str(error))


def _is_no_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _engine(url: str) -> AsyncEngine:
    if url.startswith("sqlite"):
        return _sqlite_engine(_file(url))
    if url.startswith("postgres"):
        from cas_session.drivers.postgres_url import connect_arguments  # reads URLs as the driver does

        arguments = connect_arguments(url)

        async def connect(*_: Any, **__: Any) -> Any:
            return await asyncpg.connect(**arguments)

        return create_async_engine("postgresql+asyncpg://", async_creator=connect, poolclass=NullPool)
    raise ConfigurationError(
        f"{hide_password(url)!r} is no database that can be imported from: sqlite:///FILE or postgresql://..."
    )


def _sqlite_engine(file: Path) -> AsyncEngine:
    if not file.is_file():
        raise ConfigurationError(f"there is no file {str(file)!r}")

    async def connect(*_: Any, **__: Any) -> Any:
        address = f"file:{quote(str(file))}?mode=ro"
        connection = await aiosqlite.connect(address, uri=True, isolation_level=None)
        connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
        return connection

    engine = create_async_engine("sqlite+aiosqlite://", async_creator=connect, poolclass=NullPool)
    # Python's own transactions hold no snapshot: they begin with the first write.
    event.listen(engine.sync_engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    return engine


def _file(url: str) -> Path:
    try:
        return Path(make_url(url).database or ":memory:").absolute()
    except (SQLAlchemyError, ValueError) as error:
        raise ConfigurationError(f"{url!r} is no URL of a SQLite file: {error}") from error


def _address(url: str) -> str:
    """The database that a URL names, whoever logs in and however."""
    if url.startswith("sqlite"):
        return f"sqlite:{_file(url).resolve()}"
    location, _, query = url.partition("://")[2].partition("?")
    named = [(name, value) for name, value in parse_qsl(query) if name in ("host", "port", "dbname")]
    return f"postgresql://{location.rpartition('@')[2]}" + (f"?{urlencode(named)}" if named else "")


@contextmanager
def _opening(shown: str) -> Iterator[None]:
    """Translate what goes wrong before the first row: a person has to mend it."""
    try:
        yield
    except (*ReadError, ValueError) as error:  # a ValueError: what asyncpg cannot read in the URL
        raise ConfigurationError(f"cannot import from {shown}: {_words(error)}") from error


@contextmanager
def _reading(shown: str) -> Iterator[None]:
    try:
        yield
    except ReadError as error:
        raise StorageUnavailableError(f"reading {shown} failed: {_words(error)}", transient=False) from error


def _words(error: BaseException) -> str:
    """The database's own words, without SQLAlchemy's."""
    own = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return str(own.__cause__ or own) or type(own).__name__
