from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from cas_session import migrate
from tests import postgres
from tests.session.fixtures import EMPTY, fresh_postgres, fresh_sqlite, migrated_file, one_postgres

__all__ = ["fresh_postgres", "fresh_sqlite", "migrated_file", "one_postgres"]

QUIET: dict[str, Any] = {
    "autovacuum": "off",
    "checkpoint_timeout": "1d",
    "max_wal_size": "4GB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
}
"""Settings with which a server writes and reads nothing by itself."""


@pytest.fixture(scope="session")
def quiet_server() -> Iterator[str]:
    """The URL of a migrated database on a server that nobody else uses."""
    try:
        with postgres.EmbeddedServer(**QUIET) as server, postgres.new_database(server.url) as url:
            postgres.in_own_loop(lambda: migrate.run(url, migrate.upgrade))
            yield url
    except postgres.PostgresMissingError as error:
        missing = f"no Postgres for the tests: {error}"
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail(missing, pytrace=False)
        pytest.skip(missing)


@pytest.fixture
def quiet_postgres(quiet_server: str) -> str:
    postgres.execute(quiet_server, EMPTY)
    return quiet_server
