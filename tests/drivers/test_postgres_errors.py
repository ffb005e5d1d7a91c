"""What each error of a real server means to the caller, by its SQLSTATE."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import asyncpg
import pytest

from cas_session.driver import GroupRefusedError, Load
from cas_session.drivers.postgres import PostgresDriver
from cas_session.errors import (
    CasSessionError,
    ConfigurationError,
    SchemaVersionError,
    StorageUnavailableError,
    WriteOutcomeUnknownError,
)
from tests import postgres
from tests.conformance.writes import append, load, send, texts

# Raises the SQLSTATE that its table holds, from inside the write's own statement.
RAISE = """
CREATE TABLE fault (code text);
CREATE FUNCTION raise_fault() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    wanted text := (SELECT code FROM fault);
BEGIN
    IF wanted IS NOT NULL THEN
        RAISE EXCEPTION 'fault' USING ERRCODE = wanted;
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER raise_fault BEFORE INSERT ON cas_session_op FOR EACH ROW EXECUTE FUNCTION raise_fault();
"""


@pytest.fixture
async def admin(fresh_postgres: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(fresh_postgres)
    await connection.execute(RAISE)
    yield connection
    await connection.close()


@pytest.fixture
async def driver(fresh_postgres: str, admin: asyncpg.Connection) -> AsyncIterator[PostgresDriver]:
    driver = PostgresDriver(fresh_postgres)
    await driver.open()
    yield driver
    await driver.close()


@pytest.mark.parametrize(
    ("code", "kind", "transient"),
    [
        ("40001", StorageUnavailableError, True),
        ("40P01", StorageUnavailableError, True),
        ("55P03", StorageUnavailableError, True),
        ("53300", StorageUnavailableError, True),
        ("57P03", StorageUnavailableError, True),
        ("57014", StorageUnavailableError, True),
        ("25006", StorageUnavailableError, True),
        ("53100", StorageUnavailableError, False),
        ("53200", StorageUnavailableError, False),
        ("58030", StorageUnavailableError, False),
        ("XX001", StorageUnavailableError, False),
        ("22021", StorageUnavailableError, False),
        ("P0001", StorageUnavailableError, False),
        ("42P01", SchemaVersionError, None),
        ("42703", SchemaVersionError, None),
        ("42501", ConfigurationError, None),
        ("28000", ConfigurationError, None),
        ("26000", ConfigurationError, None),
        ("42P05", ConfigurationError, None),
        ("57P01", WriteOutcomeUnknownError, None),
        ("57P02", WriteOutcomeUnknownError, None),
        ("08003", WriteOutcomeUnknownError, None),
        ("08006", WriteOutcomeUnknownError, None),
        ("08P01", WriteOutcomeUnknownError, None),
        ("40003", WriteOutcomeUnknownError, None),
    ],
)
async def test_a_write_that_the_server_refuses(
    driver: PostgresDriver,
    admin: asyncpg.Connection,
    code: str,
    kind: type[CasSessionError],
    transient: bool | None,
) -> None:
    await admin.execute(f"INSERT INTO fault VALUES ('{code}')")
    sent = append("s", "a", op_id="mine")

    with pytest.raises(kind) as caught:
        await send(driver, sent)
    await admin.execute("DELETE FROM fault")
    landed = await send(driver, append("s", "b"))

    assert getattr(caught.value, "transient", None) == transient
    assert caught.value.__cause__ is not None
    if isinstance(caught.value, WriteOutcomeUnknownError):
        assert caught.value.op_id == "mine"
    assert landed.manifest.version == 1
    assert await texts(driver, "s") == ["b"]


@pytest.mark.parametrize("code", ["40001", "57014", "22021"])
async def test_a_refused_group_landed_nothing_and_is_sent_alone(
    driver: PostgresDriver, admin: asyncpg.Connection, code: str
) -> None:
    await admin.execute(f"INSERT INTO fault VALUES ('{code}')")

    with pytest.raises(GroupRefusedError):
        await driver.append([append("s", "a"), append("s", "b")])

    assert (await load(driver, "s")).row is None


async def test_a_group_whose_connection_ended_may_have_landed(
    driver: PostgresDriver, admin: asyncpg.Connection
) -> None:
    await admin.execute("INSERT INTO fault VALUES ('57P01')")

    with pytest.raises(WriteOutcomeUnknownError):
        await driver.append([append("s", "a"), append("s", "b")])


async def test_another_unique_key_than_the_fence_is_no_landed_write(
    driver: PostgresDriver, admin: asyncpg.Connection
) -> None:
    """A version that is there already is damage, after a failover or by hand, and no first sending."""
    await send(driver, append("s", "a"))
    await admin.execute("UPDATE cas_session SET version = 0")

    with pytest.raises(StorageUnavailableError) as caught:
        await send(driver, append("s", "b"))

    assert not caught.value.transient


async def test_missing_tables_name_the_command(empty_postgres: str) -> None:
    driver = PostgresDriver(empty_postgres)
    await driver.open()
    try:
        with pytest.raises(SchemaVersionError, match="cas-session migrate"):
            await send(driver, append("s", "a"))
        with pytest.raises(SchemaVersionError, match="cas-session migrate"):
            await driver.load(Load("s"))
    finally:
        await driver.close()


@pytest.mark.parametrize("query", ["no_such_setting=1", "sslmode=never"])
async def test_a_url_that_the_server_or_asyncpg_refuses_is_for_a_person_to_mend(
    fresh_postgres: str, query: str
) -> None:
    driver = PostgresDriver(f"{fresh_postgres}&{query}")

    with pytest.raises(ConfigurationError):
        await driver.open()
    await driver.close()


async def test_a_database_that_is_not_there_is_for_a_person_to_mend(postgres_url: str) -> None:
    driver = PostgresDriver(postgres.named_database(postgres_url, "no_such_database"))

    with pytest.raises(ConfigurationError):
        await driver.open()


async def test_a_database_of_another_encoding_is_for_a_person_to_mend(postgres_url: str) -> None:
    name = f"cas_test_latin_{uuid.uuid4().hex[:12]}"
    postgres.execute(postgres_url, f"CREATE DATABASE {name} ENCODING LATIN1 LOCALE 'C' TEMPLATE template0")
    driver = PostgresDriver(postgres.named_database(postgres_url, name))
    try:
        with pytest.raises(ConfigurationError, match="LATIN1"):
            await driver.open()
    finally:
        postgres.execute(postgres_url, f"DROP DATABASE {name} WITH (FORCE)")


async def test_a_server_that_is_not_there_may_be_there_in_a_moment(unused_tcp_port: int) -> None:
    driver = PostgresDriver(f"postgresql://ann@127.0.0.1:{unused_tcp_port}/chat")

    with pytest.raises(StorageUnavailableError) as caught:
        await driver.open()

    assert caught.value.transient


async def test_an_index_beyond_a_bigint_is_no_version(driver: PostgresDriver) -> None:
    await send(driver, append("s", "a"))

    with pytest.raises(ValueError, match=str(2**70)):
        await driver.load_as_of("s", 2**70)
    assert len((await load(driver, "s", limit=2**70)).rows) == 1
