"""What openai-agents documents and tests of its own sessions, sentence by sentence.

Each runs on the SDK's SQLiteSession too, so that the sentence is true of what people come from.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, RunConfig, RunState, Session, SQLiteSession, UserError
from agents.memory import SessionSettings
from agents.testing import ScriptedModel, assistant_message, function_call
from openai import AsyncOpenAI
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from cas_session import ItemDecodingError, SessionStore
from cas_session.testing.endpoint import Reply, ResponsesEndpoint
from tests.agents.runs import add, kinds, new_agent, refused, said_by_user, turn
from tests.session.items import said, texts_of

Opener = Callable[[str], Any]


@pytest.fixture(params=["ours on sqlite", "ours on postgres", "SQLiteSession"])
def place(request: pytest.FixtureRequest) -> str | None:
    """The URL of our database; None for the SDK's own session."""
    kind = request.param.split()[-1]
    return None if kind == "SQLiteSession" else str(request.getfixturevalue(f"fresh_{kind}"))


@pytest.fixture
async def open_session(place: str | None, tmp_path: Path) -> AsyncIterator[Opener]:
    """Makes session objects by their id, all on one database."""
    if place is not None:
        async with SessionStore(place) as store:
            yield store.session
        return
    made: list[SQLiteSession] = []

    def open_theirs(session_id: str) -> SQLiteSession:
        made.append(SQLiteSession(session_id, tmp_path / "theirs.db"))
        return made[-1]

    yield open_theirs
    for session in made:
        session.close()


@pytest.fixture
def any_session(open_session: Opener) -> Any:
    return open_session("talk")


# -- the protocol


async def test_a_new_session_reads_as_empty(any_session: Any) -> None:
    assert await any_session.get_items() == []
    assert await any_session.get_items(limit=3) == []
    assert await any_session.pop_item() is None


async def test_it_is_a_session(any_session: Any) -> None:
    assert isinstance(any_session, Session)
    assert any_session.session_id == "talk"


async def test_items_come_back_in_the_order_of_the_batches(any_session: Any) -> None:
    for number in range(3):
        await any_session.add_items(said(f"{number}a", f"{number}b"))

    assert texts_of(await any_session.get_items()) == ["0a", "0b", "1a", "1b", "2a", "2b"]


async def test_the_methods_of_the_protocol_return_nothing(any_session: Any) -> None:
    assert await any_session.add_items(said("x")) is None
    assert await any_session.clear_session() is None


async def test_adding_nothing_changes_nothing(any_session: Any) -> None:
    await any_session.add_items([])

    assert await any_session.get_items() == []


async def test_a_limit_gives_the_newest_in_their_order(any_session: Any) -> None:
    await any_session.add_items(said(*"abcde"))

    assert texts_of(await any_session.get_items(limit=2)) == ["d", "e"]
    assert texts_of(await any_session.get_items(2)) == ["d", "e"]
    assert texts_of(await any_session.get_items(limit=10)) == list("abcde")
    assert texts_of(await any_session.get_items(limit=None)) == list("abcde")
    assert await any_session.get_items(limit=0) == []


async def test_the_settings_limit_is_the_default_and_an_explicit_limit_wins(any_session: Any) -> None:
    await any_session.add_items(said(*"abcde"))
    any_session.session_settings = SessionSettings(limit=3)

    assert texts_of(await any_session.get_items()) == ["c", "d", "e"]
    assert texts_of(await any_session.get_items(limit=2)) == ["d", "e"]
    assert texts_of(await any_session.get_items(limit=4)) == ["b", "c", "d", "e"]


async def test_pop_takes_the_newest_one_at_a_time(any_session: Any) -> None:
    await any_session.add_items(said(*"ab"))

    assert [await any_session.pop_item() for _ in range(3)] == [*said("b"), *said("a"), None]
    assert await any_session.get_items() == []


async def test_clear_empties_and_the_session_goes_on(any_session: Any) -> None:
    await any_session.add_items(said("old"))
    await any_session.clear_session()
    await any_session.clear_session()
    await any_session.add_items(said("new"))

    assert texts_of(await any_session.get_items()) == ["new"]


async def test_sessions_with_other_ids_do_not_meet(open_session: Opener) -> None:
    first, second = open_session("first"), open_session("second")
    await first.add_items(said("1"))
    await second.add_items(said("2"))
    await second.pop_item()

    assert texts_of(await first.get_items()) == ["1"]
    assert await second.get_items() == []


async def test_two_objects_with_one_id_are_one_session(open_session: Opener) -> None:
    await open_session("talk").add_items(said("here"))

    assert texts_of(await open_session("talk").get_items()) == ["here"]


async def test_any_text_comes_back_as_it_was(any_session: Any) -> None:
    """Other scripts, emoji, quotes, SQL, and the key order of an item."""
    items = said("你好 🎈 ñ", "'; DROP TABLE cas_session; --", '"quoted" \\ \n\t', "\u2028")
    items.append({"z": 1, "role": "user", "a": {"y": [1.5, None, True], "b": ""}, "content": "x"})

    await any_session.add_items(items)

    read = await any_session.get_items()
    assert read == items
    assert list(read[-1]) == list(items[-1])


async def test_what_was_read_may_be_changed_freely(any_session: Any) -> None:
    await any_session.add_items(said("kept"))
    (await any_session.get_items())[0]["content"] = "changed"

    assert texts_of(await any_session.get_items()) == ["kept"]


async def test_concurrent_first_writes_all_land_whole(open_session: Opener) -> None:
    """Each batch stays together."""
    await asyncio.gather(
        *(open_session("talk").add_items(said(f"{number}a", f"{number}b")) for number in range(20))
    )

    texts = texts_of(await open_session("talk").get_items())
    assert sorted(texts[::2]) == sorted(f"{number}a" for number in range(20))
    assert [first[:-1] for first in texts[::2]] == [second[:-1] for second in texts[1::2]]


async def test_concurrent_pops_give_each_item_once(any_session: Any) -> None:
    await any_session.add_items(said(*"abcdefgh"))

    popped = await asyncio.gather(*(any_session.pop_item() for _ in range(10)))

    assert sorted(item["content"] for item in popped if item) == list("abcdefgh")


# -- with the runner


async def test_the_next_run_sees_what_the_one_before_stored(any_session: Any) -> None:
    model = ScriptedModel([[assistant_message("San Francisco")], [assistant_message("California")]])
    agent: Agent[None] = Agent(name="Guide", model=model)

    await turn(agent, "Which city?", any_session)
    result = await turn(agent, "Which state?", any_session)

    assert result.final_output == "California"
    assert said_by_user(model.calls[1].input) == ["Which city?", "Which state?"]
    assert kinds(await any_session.get_items()) == ["user", "assistant"] * 2


async def test_without_a_session_nothing_is_remembered(any_session: Any) -> None:
    model = ScriptedModel([[assistant_message("one")], [assistant_message("two")]])
    agent: Agent[None] = Agent(name="Guide", model=model)

    await turn(agent, "first", any_session)
    await turn(agent, "second", None)

    assert said_by_user(model.calls[1].input) == ["second"]
    assert kinds(await any_session.get_items()) == ["user", "assistant"]


async def test_a_list_input_is_appended_as_it_is(any_session: Any) -> None:
    model = ScriptedModel([[assistant_message("one")], [assistant_message("two")]])
    agent: Agent[None] = Agent(name="Guide", model=model)

    await turn(agent, "first", any_session)
    await turn(agent, said("second", "third"), any_session)

    assert kinds(await any_session.get_items()) == ["user", "assistant", "user", "user", "assistant"]


@pytest.mark.parametrize(("limit", "seen"), [(0, 0), (2, 2), (None, 4), (100, 4)])
async def test_a_runs_limit_bounds_what_its_model_sees(
    any_session: Any, limit: int | None, seen: int
) -> None:
    """The stored history is not touched."""
    model = ScriptedModel([[assistant_message("yes")]] * 3)
    agent: Agent[None] = Agent(name="Guide", model=model)
    for text_ in ("one", "two"):
        await turn(agent, text_, any_session)
    config = RunConfig(tracing_disabled=True, session_settings=SessionSettings(limit=limit))

    await turn(agent, "three", any_session, config=config)

    assert len(model.calls[2].input) == seen + 1
    assert len(await any_session.get_items()) == 6


async def test_a_limit_that_parts_a_tool_pair_sends_neither_half(any_session: Any) -> None:
    model = ScriptedModel(
        [
            [function_call("add", {"a": 1, "b": 2}, call_id="call_1")],
            [assistant_message("3")],
            [assistant_message("ok")],
        ]
    )
    agent: Agent[None] = Agent(name="Counter", model=model, tools=[add])
    await turn(agent, "1+2", any_session)
    config = RunConfig(tracing_disabled=True, session_settings=SessionSettings(limit=2))

    await turn(agent, "thanks", any_session, config=config)

    assert kinds(model.calls[2].input) == ["assistant", "user"]


async def test_a_callback_that_repeats_the_history_does_not_make_it_grow(any_session: Any) -> None:
    model = ScriptedModel([[assistant_message("yes")]] * 2)
    agent: Agent[None] = Agent(name="Guide", model=model)
    config = RunConfig(
        tracing_disabled=True, session_input_callback=lambda history, new: [*history, *history, *new]
    )

    for text_ in ("one", "two"):
        await turn(agent, text_, any_session, config=config)

    assert kinds(await any_session.get_items()) == ["user", "assistant"] * 2


async def test_a_correction_by_pop_replaces_the_last_question(any_session: Any) -> None:
    model = ScriptedModel([[assistant_message("4")], [assistant_message("5")]])
    agent: Agent[None] = Agent(name="Counter", model=model)
    await turn(agent, "2+2?", any_session)

    await any_session.pop_item()
    await any_session.pop_item()
    await turn(agent, "2+3?", any_session)

    assert said_by_user(model.calls[1].input) == ["2+3?"]
    assert said_by_user(await any_session.get_items()) == ["2+3?"]


async def test_a_run_is_resumed_with_another_object_of_the_same_session(
    open_session: Opener, endpoint: ResponsesEndpoint, client: AsyncOpenAI
) -> None:
    agent = new_agent(client)
    endpoint.reply_with(Reply.calls(("pay", {"amount": 5})), Reply.text("paid"))
    asked: Any = await turn(agent, "pay 5", open_session("talk"))
    state = await RunState.from_string(agent, asked.to_state().to_string())
    state.approve(state.get_interruptions()[0])

    result = await turn(agent, state, open_session("talk"))
    await turn(agent, "thanks", open_session("talk"))

    assert result.final_output == "paid"
    assert refused(endpoint) == []


async def test_a_resumed_run_refuses_another_session(
    open_session: Opener, endpoint: ResponsesEndpoint, client: AsyncOpenAI
) -> None:
    """Where a write of its is pending. Its fingerprints of the newest rows are equal on every store."""
    agent = new_agent(client)
    endpoint.reply_with(Reply.calls(("pay", {"amount": 5})), Reply.text("paid"))
    asked: Any = await turn(agent, "pay 5", open_session("talk"))
    state = asked.to_state()
    state.approve(state.get_interruptions()[0])
    session = open_session("talk")

    async def fail(items: Any) -> None:
        raise OSError("the disk is full")

    session.add_items = fail
    with pytest.raises(OSError, match="disk"):
        await turn(agent, state, session)

    with pytest.raises(UserError, match="original Session"):
        await turn(agent, state, open_session("another"))
    result = await turn(agent, state, open_session("talk"))

    assert result.final_output == "paid"
    assert kinds(await session.get_items()) == ["user", "function_call", "function_call_output", "assistant"]


async def test_a_resumed_run_refuses_a_history_that_changed_behind_its_pending_write(
    open_session: Opener, endpoint: ResponsesEndpoint, client: AsyncOpenAI
) -> None:
    agent = new_agent(client)
    endpoint.reply_with(Reply.calls(("pay", {"amount": 5})), Reply.text("paid"))
    asked: Any = await turn(agent, "pay 5", open_session("talk"))
    state = asked.to_state()
    state.approve(state.get_interruptions()[0])
    session = open_session("talk")

    async def fail(items: Any) -> None:
        raise OSError("the disk is full")

    session.add_items = fail
    with pytest.raises(OSError, match="disk"):
        await turn(agent, state, session)
    await open_session("talk").add_items(said("from elsewhere"))

    with pytest.raises(UserError, match="history changed"):
        await turn(agent, state, open_session("talk"))


# -- where ours differs, on purpose


async def test_a_corrupt_row_is_an_error_that_names_it_and_not_a_gap(
    database_url: str, store: SessionStore
) -> None:
    """The SDK's stores skip it, so that a call loses its output without a word."""
    session = store.session("talk")
    await session.append(said(*"abc"))
    engine = create_async_engine(
        make_url(database_url).set(
            drivername="sqlite+aiosqlite" if database_url.startswith("sqlite") else "postgresql+asyncpg"
        )
    )
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE cas_session_item SET data = '{\"torn\"' WHERE seq = 2"))
    await engine.dispose()

    with pytest.raises(ItemDecodingError) as error:
        await session.get_items()

    assert (error.value.session_id, error.value.seq) == ("talk", 2)


async def test_a_negative_limit_is_refused(store: SessionStore) -> None:
    """SQLite takes it for no limit, other databases fail in words of their own."""
    with pytest.raises(ValueError, match="-1"):
        await store.session("talk").get_items(limit=-1)


async def test_what_is_no_json_is_refused_before_anything_is_stored(store: SessionStore) -> None:
    session = store.session("talk")

    with pytest.raises(ValueError, match=r"items\[1\]"):
        await session.add_items([{"role": "user", "content": "a"}, {"content": {1, 2}}])  # type: ignore[list-item,typeddict-item]

    assert await session.get_items() == []
