import pytest
from agents import Agent, set_tracing_disabled
from openai import AsyncOpenAI

from cas_session import CasSession, SessionStore
from tests.agents.runs import compacting_session, new_agent
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


set_tracing_disabled(True)  # traces go out to a server


@pytest.fixture
def agent(client: AsyncOpenAI) -> Agent[None]:
    return new_agent(client)


@pytest.fixture
def plain(store: SessionStore) -> CasSession:
    """A session without a compactor."""
    return store.session("talk")


@pytest.fixture
def session(store: SessionStore, client: AsyncOpenAI) -> CasSession:
    """A session that is compacted after each turn that leaves four items and more."""
    return compacting_session(store, client)
