from __future__ import annotations

import pytest
from openai import AsyncOpenAI

from cas_session import SessionStore
from cas_session.testing.endpoint import ResponsesEndpoint
from tests.compaction.scene import Scene
from tests.session.fixtures import (
    client,
    endpoint,
    fresh_postgres,
    fresh_sqlite,
    migrated_file,
    one_postgres,
    other,
    patched,
    store,
)

__all__ = [
    "client",
    "endpoint",
    "fresh_postgres",
    "fresh_sqlite",
    "migrated_file",
    "one_postgres",
    "other",
    "patched",
    "store",
]


@pytest.fixture
def scene(
    database_url: str,
    store: SessionStore,
    other: SessionStore,
    endpoint: ResponsesEndpoint,
    client: AsyncOpenAI,
) -> Scene:
    return Scene(database_url, store, other, endpoint, client)
