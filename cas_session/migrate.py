"""Alembic, run from code, and the rule which schema a release can work with.

A revision id carries the oldest schema whose releases it serves: `0003_serves_0001` only added things to
`0001`, so a release made for `0001` goes on working while a rolling deploy has migrated to `0003` already.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, create_engine, event, inspect, make_url, text
from sqlalchemy.pool import NullPool
from sqlalchemy.util.concurrency import await_only, in_greenlet

from cas_session import schema
from cas_session.errors import ConfigurationError, SchemaVersionError

HEAD = schema.REVISION

BUSY_TIMEOUT_S = 30.0
TAKE_LOCK = text("SELECT pg_advisory_xact_lock(CAST(:key AS bigint))")
READ_REVISION = text("SELECT version_num FROM cas_session_alembic_version")

_REVISION = re.compile(r"(\d{4})_serves_(\d{4})")

# Alembic keeps the running migration in module globals.
_alembic_is_busy = threading.Lock()


def upgrade(connection: Connection) -> None:
    """Bring the schema to the newest revision, inside the caller's transaction, which the caller commits.

    A newer schema that serves this release is left as it is. Two callers on one database must exclude each
    other (a lock on Postgres, BEGIN IMMEDIATE on SQLite).

    Raises:
        SchemaVersionError: The schema is newer and does not serve this release. Nothing was changed.
    """
    revision = current_revision(connection)
    if revision is not None and _number(revision) >= _number(HEAD):
        check_revision(revision, str(connection.engine.url))
        return
    from alembic import command

    with _one_at_a_time():
        command.upgrade(_config(connection), "head")


def current_revision(connection: Connection) -> str | None:
    """The revision of the database; None if the tables are missing."""
    if not inspect(connection).has_table(schema.VERSION_TABLE):
        return None
    revision: str | None = connection.scalar(READ_REVISION)
    return revision


def check_revision(revision: str | None, url: str) -> None:
    """Return if this release can work with a database at ``revision``.

    Raises:
        SchemaVersionError: It cannot. The text says the command that mends it.
    """
    command = f"cas-session migrate {shlex.quote(hide_password(url))}"
    if revision is None:
        raise SchemaVersionError(f"the database has no cas_session tables; make them with: {command}")
    match = _REVISION.fullmatch(revision)
    if match is None:
        raise SchemaVersionError(
            f"the database is at the revision {revision!r}, which is none of cas_session's; "
            f"the table {schema.VERSION_TABLE} must name one"
        )
    if _number(revision) < _number(HEAD):
        raise SchemaVersionError(
            f"the tables are at {revision}, this release needs {HEAD}; bring them there with: {command}"
        )
    if int(match[2]) > _number(HEAD):
        raise SchemaVersionError(
            f"the tables are at {revision}, which does not serve this release ({HEAD}); "
            "update it with: pip install -U cas-session"
        )


def hide_password(url: str) -> str:
    """The URL as it may be shown."""
    scheme, separator, rest = url.partition("://")
    authority = re.split(r"[/?]", rest, maxsplit=1)[0]
    user, at, _ = authority.rpartition("@")
    if at and ":" in user:
        rest = f"{user.partition(':')[0]}:***{rest[len(user) :]}"
    return scheme + separator + re.sub(r"([?&]password=)[^&]*", r"\1***", rest)


async def run(url: str, function: Callable[[Connection], None]) -> None:
    """Call ``function`` on a connection to ``url``, in one transaction that excludes other migrations.

    Args:
        url: In any of the forms that a store takes.
        function: Such as `upgrade`.

    Raises:
        ConfigurationError: The URL names no database that is served.
    """
    if url.startswith("postgres"):
        await _run_on_postgres(url, function)
    elif url.startswith("sqlite"):
        await asyncio.to_thread(_run_on_sqlite, url, function)
    else:
        raise ConfigurationError(
            f"{hide_password(url)!r} is no database URL that is served: give sqlite:///FILE or postgresql://..."
        )


async def _run_on_postgres(url: str, function: Callable[[Connection], None]) -> None:
    import asyncpg
    from sqlalchemy.ext.asyncio import create_async_engine

    from cas_session.drivers.postgres_url import connect_arguments  # reads URLs as the driver does

    arguments = connect_arguments(url)

    async def connect(*_: Any, **__: Any) -> Any:
        return await asyncpg.connect(**arguments)

    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect, poolclass=NullPool)
    async with engine.begin() as connection:
        await connection.execute(TAKE_LOCK, {"key": schema.MIGRATION_LOCK})
        await connection.run_sync(function)


def _run_on_sqlite(url: str, function: Callable[[Connection], None]) -> None:
    engine = create_engine(
        make_url(url).set(drivername="sqlite"),
        connect_args={"timeout": BUSY_TIMEOUT_S, "isolation_level": None},
        poolclass=NullPool,
    )
    # Python's own transactions begin too late: a second migration must wait before it reads.
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    with engine.begin() as connection:
        function(connection)


def _number(revision: str) -> int:
    """The number of a revision; 0 of a foreign one."""
    match = _REVISION.fullmatch(revision)
    return int(match[1]) if match else 0


def _config(connection: Connection) -> Any:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_script_folder()).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _script_folder() -> Path:
    """The migrations: in the package of an installed wheel, beside it in a checkout."""
    package = Path(__file__).parent
    for folder in (package / "_alembic", package.parent / "alembic"):
        if (folder / "env.py").is_file():
            return folder
    raise ConfigurationError(
        f"the migrations are missing from {package / '_alembic'}: install cas-session again"
    )


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Let other threads, and other tasks of this loop, wait: whoever is inside may wait for its database."""
    if in_greenlet():
        while not _alembic_is_busy.acquire(blocking=False):
            await_only(asyncio.sleep(0.01))
    else:
        _alembic_is_busy.acquire()
    try:
        yield
    finally:
        _alembic_is_busy.release()
