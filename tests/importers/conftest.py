from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cas_session import SessionStore
from tests.importers.sources import KINDS, Sdk, open_sdk
from tests.session.fixtures import (
    fresh_postgres,
    fresh_sqlite,
    migrated_file,
    one_postgres,
    other,
    patched,
    store,
)

__all__ = ["fresh_postgres", "fresh_sqlite", "migrated_file", "one_postgres", "other", "patched", "store"]


@pytest.fixture(params=KINDS)
async def sdk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Sdk]:
    """A database of the SDK's sessions, of each kind."""
    needs_server = request.param.endswith("postgres")
    url = request.getfixturevalue("one_postgres") if needs_server else f"sqlite:///{tmp_path}/theirs.db"
    async with open_sdk(request.param, url) as sdk:
        yield sdk


@pytest.fixture
async def sqlite_sdk(tmp_path: Path) -> AsyncIterator[Sdk]:
    """The SDK's SQLiteSession, for what does not depend on the source."""
    async with open_sdk("SQLiteSession", f"sqlite:///{tmp_path}/theirs.db") as sdk:
        yield sdk


@pytest.fixture
async def sqlite_store(fresh_sqlite: str) -> AsyncIterator[SessionStore]:
    """For what does not depend on the target."""
    async with SessionStore(fresh_sqlite) as store:
        yield store
