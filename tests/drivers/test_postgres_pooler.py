"""Behind pgbouncer in transaction mode, where two statements of one client meet different servers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from cas_session import schema
from cas_session.driver import Driver, FinishCompaction
from cas_session.drivers.postgres import PostgresDriver
from cas_session.errors import ConfigurationError
from tests import postgres
from tests.conformance.writes import (
    KINDS,
    append,
    begin,
    delete,
    load,
    operations,
    pop,
    send,
    texts,
    until_landed,
    write,
)

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

CONFIG = """
[databases]
* = host={host} port={port} user={user} {password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen_port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 3
"""

pytestmark = pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed")


@contextlib.asynccontextmanager
async def pooler(url: str, folder: Path) -> AsyncIterator[str]:
    """Run pgbouncer in front of a database's server; gives the database's URL through it."""
    target = make_url(url)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        listen_port = free.getsockname()[1]
    config = folder / "pgbouncer.ini"
    config.write_text(
        CONFIG.format(
            host=target.query.get("host") or target.host,
            port=target.port or 5432,
            user=target.username or "postgres",
            password=f"password={target.password}" if target.password else "",
            listen_port=listen_port,
        )
    )
    process = await asyncio.create_subprocess_exec(
        str(PGBOUNCER), config, stderr=subprocess.DEVNULL, **postgres.as_server_user()
    )
    try:
        through = f"postgresql://{target.username or 'postgres'}@127.0.0.1:{listen_port}/{target.database}"
        while not await _answers(through):
            assert process.returncode is None, "pgbouncer did not start"
            await asyncio.sleep(0.02)
        yield through
    finally:
        process.kill()
        await process.wait()


async def _answers(url: str) -> bool:
    try:
        connection = await asyncpg.connect(url, statement_cache_size=0)
    except OSError:
        return False
    await connection.close()
    return True


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the server's user can read, unlike pytest's."""
    with tempfile.TemporaryDirectory(prefix="cas-pgbouncer-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
async def through(fresh_postgres: str, folder: Path) -> AsyncIterator[str]:
    async with pooler(fresh_postgres, folder) as url:
        yield url


@contextlib.asynccontextmanager
async def opened(*drivers: Driver) -> AsyncIterator[tuple[Driver, ...]]:
    async with contextlib.AsyncExitStack() as stack:
        for driver in drivers:
            await driver.open()
            stack.push_async_callback(driver.close)
        yield drivers


async def _work(driver: Driver, s: str) -> None:
    """Every verb, beside others who do the same."""
    await send(driver, append(s, "a", "b"))
    for kind in KINDS:
        await send(driver, write(kind, await load(driver, s)))
        await until_landed(driver, append(s, "c", "d"))
    assert (await send(driver, pop(s, locked=True))).item == "d"
    attempt = begin(s, (await load(driver, s)).manifest)
    await driver.begin_compaction(attempt)
    await driver.finish_compaction(FinishCompaction(attempt_id=attempt.attempt_id, decision="failed"))
    await driver.load_as_of(s, 15)
    await send(driver, delete(s))
    assert await driver.forget(s)


@pytest.mark.parametrize("name", ["statement_cache_size", "prepared_statement_cache_size"])
async def test_without_prepared_statements_every_verb_works(through: str, name: str) -> None:
    url = f"{through}?{name}=0"
    async with opened(*(PostgresDriver(url, pool_size=4) for _ in range(3))) as drivers:
        await asyncio.gather(*(_work(drivers[at % 3], f"s{at}") for at in range(12)))


async def test_an_engine_without_prepared_statements_works(through: str) -> None:
    url = through.replace("postgresql://", "postgresql+asyncpg://")
    engine = create_async_engine(
        f"{url}?prepared_statement_cache_size=0", connect_args={"statement_cache_size": 0}
    )
    async with opened(PostgresDriver(engine)) as (driver,):
        await asyncio.gather(*(_work(driver, f"s{at}") for at in range(6)))
    await engine.dispose()


async def test_one_hot_session_of_many_workers_is_gapless(through: str) -> None:
    url = f"{through}?statement_cache_size=0"
    async with opened(*(PostgresDriver(url, pool_size=4) for _ in range(3))) as drivers:
        await asyncio.gather(*(until_landed(drivers[at % 3], append("s", str(at))) for at in range(60)))
        versions = [int(row.manifest.version) for row in await operations(drivers[0], "s")]

        assert versions == list(range(60, 0, -1))
        assert sorted(map(int, await texts(drivers[0], "s"))) == list(range(60))


async def test_prepared_statements_that_the_pooler_lost_are_named_with_their_cure(through: str) -> None:
    async with opened(PostgresDriver(through, pool_size=8)) as (driver,):
        results = await asyncio.gather(
            *(send(driver, append(f"s{at}", "a")) for at in range(200)), return_exceptions=True
        )
    errors = [result for result in results if isinstance(result, BaseException)]

    assert errors
    assert all(isinstance(error, ConfigurationError) for error in errors)
    assert all("prepared_statement_cache_size=0" in str(error) for error in errors)


async def test_migrations_run_through_it_also_of_many_workers(empty_postgres: str, folder: Path) -> None:
    async with pooler(empty_postgres, folder) as through:
        url = f"{through}?statement_cache_size=0"
        async with opened(*(PostgresDriver(url) for _ in range(6))) as drivers:
            await asyncio.gather(*(driver.migrate() for driver in drivers))

            assert await drivers[0].schema_revision() == schema.REVISION
