"""Real databases for the tests: a new one for each test, on both back ends."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from cas_session import migrate
from tests import postgres

_SHARED_URL = pytest.StashKey[str]()
_SHARED_SERVER = pytest.StashKey[contextlib.ExitStack]()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """With pytest-xdist: one server for all its workers."""
    stash = node.config.stash
    if _SHARED_SERVER not in stash:
        stash[_SHARED_SERVER] = contextlib.ExitStack()
        with contextlib.suppress(postgres.PostgresMissingError):
            stash[_SHARED_URL] = stash[_SHARED_SERVER].enter_context(postgres.any_server())
    if url := stash.get(_SHARED_URL, None):
        node.workerinput["postgres_url"] = url


def pytest_unconfigure(config: pytest.Config) -> None:
    if server := config.stash.get(_SHARED_SERVER, None):
        server.close()


@pytest.fixture(scope="session")
def postgres_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of the server's admin database."""
    if shared := getattr(request.config, "workerinput", {}).get("postgres_url"):
        yield shared
        return
    with contextlib.ExitStack() as stack:
        try:
            url = stack.enter_context(postgres.any_server())
        except postgres.PostgresMissingError as error:
            missing = f"no Postgres for the tests: {error}"
            if os.environ.get("CI", "").lower() in ("1", "true"):
                pytest.fail(missing, pytrace=False)
            pytest.skip(missing)
        yield url


@pytest.fixture(scope="session")
def migrated_template(postgres_url: str) -> Iterator[str]:
    """The name of a database with the current schema, to make others from."""
    with postgres.new_database(postgres_url) as url:
        postgres.in_own_loop(lambda: migrate.run(url, migrate.upgrade))
        yield make_url(url).database or ""


@pytest.fixture
def fresh_postgres(postgres_url: str, migrated_template: str) -> Iterator[str]:
    """The URL of a new database with the current schema."""
    with postgres.new_database(postgres_url, template=migrated_template) as url:
        yield url


@pytest.fixture
def empty_postgres(postgres_url: str) -> Iterator[str]:
    """The URL of a new database without tables."""
    with postgres.new_database(postgres_url) as url:
        yield url


@pytest.fixture
def fresh_sqlite(tmp_path: Path) -> str:
    """The URL of a SQLite file that is not there yet; opening it makes the tables."""
    return f"sqlite+aiosqlite:///{tmp_path / 'sessions.db'}"


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """A new database of each kind."""
    return str(request.getfixturevalue(f"fresh_{request.param}"))
