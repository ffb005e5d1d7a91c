"""CasSession with what openai-agents wraps around sessions, and with other versions of it."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from agents import Agent, OpenAIResponsesCompactionSession
from agents.extensions.memory import EncryptedSession
from agents.memory import SessionSettings
from openai import AsyncOpenAI

from cas_session import CasSession, ConfigurationError, SessionStore
from cas_session.compaction import runner
from cas_session.compaction.policy import when_items
from cas_session.testing.endpoint import Reply, ResponsesEndpoint
from tests.agents.runs import compacting_session, kinds, new_agent, refused, said_by_user, turn
from tests.session.items import said, texts_of, turns

KEY = "Yz3Jq8Qb1uYQmXWcGvN0y9rYh6S0m7d1k3s5b8f2w4E="
both_ways = pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])


def encrypted(session: CasSession) -> Any:
    return EncryptedSession(session.session_id, session, KEY)  # type: ignore[arg-type]


# -- EncryptedSession


@both_ways
async def test_an_encrypted_session_around_a_plain_one_works_and_is_never_compacted(
    endpoint: ResponsesEndpoint, plain: CasSession, agent: Agent[None], streamed: bool
) -> None:
    outer = encrypted(plain)
    endpoint.reply_with(Reply.calls(("add", {"a": 1, "b": 2})), Reply.text("3"))

    for text in ("1+2", "thanks", "again"):
        await turn(agent, text, outer, streamed=streamed)

    assert said_by_user(await outer.get_items()) == ["1+2", "thanks", "again"]
    assert all("__enc__" in item for item in await plain.get_items())
    assert endpoint.compact_requests == []
    assert refused(endpoint) == []


async def test_the_other_names_work_through_the_encryption(plain: CasSession) -> None:
    outer = encrypted(plain)
    await outer.add_items(said(*"abcd"))
    outer.session_settings = SessionSettings(limit=3)

    assert texts_of(await outer.get_items()) == ["b", "c", "d"]
    assert texts_of(await outer.get_items(limit=2)) == ["c", "d"]
    assert await outer.pop_item() == said("d")[0]
    await outer.clear_session()
    assert await outer.get_items() == []


@both_ways
@pytest.mark.parametrize("mode", ["auto", "input", "previous_response_id"])
async def test_envelopes_are_refused_with_words_that_say_what_to_do(
    endpoint: ResponsesEndpoint,
    store: SessionStore,
    client: AsyncOpenAI,
    agent: Agent[None],
    caplog: pytest.LogCaptureFixture,
    mode: str,
    streamed: bool,
) -> None:
    """A model could not read them, and the outer session would drop a compaction that is not encrypted."""
    session = compacting_session(store, client, mode=mode)
    outer = encrypted(session)
    endpoint.reply_with(Reply.calls(("add", {"a": 1, "b": 2})), Reply.text("3"))
    with caplog.at_level(logging.WARNING, logger="cas_session"):
        for text in ("1+2", "thanks", "again"):
            await turn(agent, text, outer, streamed=streamed)
    report = await session.compact(force=True)

    assert report.status == "unsupported"
    assert report.error is not None
    assert "no compactor" in report.error
    assert endpoint.compact_requests == []
    assert said_by_user(await outer.get_items()) == ["1+2", "thanks", "again"]
    assert [report.error in record.getMessage() for record in caplog.records] == [True]


async def test_one_envelope_among_plain_items_is_enough(
    endpoint: ResponsesEndpoint, session: CasSession
) -> None:
    await session.append(turns(3))
    await encrypted(session).add_items(said("secret"))
    await session.append(turns(1))

    assert (await session.compact(force=True)).status == "unsupported"
    assert endpoint.compact_requests == []


# -- OpenAIResponsesCompactionSession


def wrapped(session: Any, client: AsyncOpenAI, count: int) -> OpenAIResponsesCompactionSession:
    return OpenAIResponsesCompactionSession(
        "talk",
        session,
        client=client,
        compaction_mode="input",
        should_trigger_compaction=lambda context: len(context["session_items"]) >= count,
    )


@both_ways
async def test_the_sdks_own_compaction_session_is_refused_at_its_first_replace(
    endpoint: ResponsesEndpoint, plain: CasSession, agent: Agent[None], client: AsyncOpenAI, streamed: bool
) -> None:
    """Before it pays; the turn is stored."""
    outer = wrapped(plain, client, 4)
    await turn(agent, "hello", outer, streamed=streamed)

    with pytest.raises(ConfigurationError, match="OpenAIResponsesCompactionSession"):
        await turn(agent, "again", outer, streamed=streamed)

    assert endpoint.compact_requests == []
    assert kinds(await plain.get_items()) == ["user", "assistant"] * 2


async def test_its_manual_compaction_is_refused_and_replaces_nothing(
    plain: CasSession, client: AsyncOpenAI
) -> None:
    """It has paid by then: it asks the model before it looks at the store."""
    outer = wrapped(plain, client, 100)
    await outer.add_items(said(*"abcd"))  # type: ignore[arg-type]
    before = await plain.snapshot()

    with pytest.raises(ConfigurationError, match=r"store\.session"):
        await outer.run_compaction({"force": True})

    assert await plain.snapshot() == before


async def test_it_is_refused_through_an_encryption_too(
    endpoint: ResponsesEndpoint, plain: CasSession, agent: Agent[None], client: AsyncOpenAI
) -> None:
    outer: Any = EncryptedSession("talk", wrapped(plain, client, 4), KEY)
    await turn(agent, "hello", outer)

    with pytest.raises(ConfigurationError, match="OpenAIResponsesCompactionSession"):
        await turn(agent, "again", outer)

    assert said_by_user(await outer.get_items()) == ["hello", "again"]
    assert endpoint.compact_requests == []


# -- other versions of the SDK


class Narrow:
    """What an SDK sees that asks for the public names only."""

    def __init__(self, session: CasSession) -> None:
        self.session_id = session.session_id
        self.session_settings = session.session_settings
        self.get_items = session.get_items
        self.add_items = session.add_items
        self.pop_item = session.pop_item
        self.clear_session = session.clear_session
        self.run_compaction = session.run_compaction


@both_ways
async def test_a_runner_that_knows_none_of_the_private_names_works_too(
    endpoint: ResponsesEndpoint, store: SessionStore, client: AsyncOpenAI, streamed: bool
) -> None:
    session = compacting_session(store, client, trigger=when_items(6))
    agent, outer = new_agent(client), Narrow(session)
    endpoint.reply_with(Reply.calls(("add", {"a": 1, "b": 2})), Reply.text("3"))

    for text in ("1+2", "thanks", "again"):
        await turn(agent, text, outer, streamed=streamed)  # type: ignore[arg-type]

    assert kinds(await session.get_items()) == ["user", "user", "compaction", "user", "assistant"]
    assert refused(endpoint) == []


async def test_a_runner_that_gives_no_context_works_too(session: CasSession) -> None:
    """As the first versions did: run_compaction({...}) and nothing else."""
    await session.get_items()
    await session.add_items(turns(3))  # type: ignore[arg-type]

    assert await session.run_compaction({"response_id": "resp_1", "store": False}) is None

    assert kinds(await session.get_items()) == ["user"] * 3 + ["compaction"]


async def test_tokens_of_another_store_are_no_tokens(session: CasSession, plain: CasSession) -> None:
    """A context that went through another session's runs makes this one know nothing of its history."""

    async def read() -> Any:
        return await plain.get_items()

    async def write() -> None:
        await session.add_items(turns(1))  # type: ignore[arg-type]

    _, foreign = await plain._get_items_with_generation(read)
    token = await session._add_items_with_generation(write, expected_generation=foreign)

    assert token is not foreign
    assert token.state.read_epoch is None


@pytest.mark.parametrize(
    ("version", "warned"), [("0.24.0", 0), ("0.24.7", 0), ("0.25.0", 1), ("0.23.1", 1), ("1.0.0rc1", 1)]
)
async def test_a_version_outside_the_tested_range_warns_once(
    plain: CasSession,
    agent: Agent[None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    version: str,
    warned: int,
) -> None:
    monkeypatch.setattr(runner.metadata, "version", lambda name: version)
    runner._check_installed_sdk.cache_clear()
    with caplog.at_level(logging.WARNING, logger="cas_session"):
        for _ in range(2):
            await turn(agent, "hello", plain)
    runner._check_installed_sdk.cache_clear()

    assert len(caplog.records) == warned
    assert all(version in record.getMessage() for record in caplog.records)
