"""The real Runner of openai-agents, as it is, over a session that compacts itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from agents import Agent, ModelSettings, RunConfig, RunContextWrapper, Runner, function_tool
from agents.models.openai_responses import OpenAIResponsesModel

from cas_session import CasSession, CompactionPolicy, Item
from cas_session.driver import NO_CHAIN
from cas_session.testing.endpoint import Fault, Reply
from tests.compaction.scene import MODEL, Scene
from tests.session.items import said, turns

Turn = Callable[[Agent[None], CasSession, str], Awaitable[str]]

QUIET = RunConfig(tracing_disabled=True)
ALWAYS = CompactionPolicy(trigger=lambda context: True, min_savings=0)


@function_tool
def add(a: int, b: int) -> int:
    return a + b


@pytest.fixture
def agent(scene: Scene) -> Agent[None]:
    model = OpenAIResponsesModel(model=MODEL, openai_client=scene.client)
    return Agent(name="Counter", instructions="Count.", model=model, tools=[add])


async def plain(agent: Agent[None], session: CasSession, text: str) -> str:
    run = await Runner.run(agent, text, session=session, run_config=QUIET)
    return str(run.final_output)


async def streamed(agent: Agent[None], session: CasSession, text: str) -> str:
    run = Runner.run_streamed(agent, text, session=session, run_config=QUIET)
    async for _ in run.stream_events():
        pass
    return str(run.final_output)


@pytest.fixture(params=[plain, streamed])
def turn(request: pytest.FixtureRequest) -> Turn:
    return request.param  # type: ignore[no-any-return]


def tool_turn() -> list[Reply]:
    return [
        Reply.calls(("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4}), reasoning="Two sums."),
        Reply.text("3 and 7", reasoning="Both are there."),
    ]


def kinds_of(items: list[Item]) -> list[str]:
    return [str(item.get("type", "message")) for item in items]


async def test_a_turn_is_stored_and_compacted(scene: Scene, agent: Agent[None], turn: Turn) -> None:
    """The next turn goes on with what the compaction left, and the strict endpoint accepts it."""
    history = turns(12)
    session = scene.session()
    await session.append(history)

    first = await turn(agent, session, "hello")
    items = (await session.snapshot()).items
    second = await turn(agent, session, "again")

    assert (first, second) == ("You said: hello", "You said: again")
    assert len(scene.requests) == 1
    assert items[-1]["type"] == "compaction"
    covered = scene.stands_for(items)
    assert covered[:24] == history
    assert [item["role"] for item in covered[24:]] == ["user", "assistant"]


async def test_a_tool_turn_is_stored_and_compacted_whole(
    scene: Scene, agent: Agent[None], turn: Turn
) -> None:
    """Reasoning, parallel calls, outputs and answer; once, after the final reply."""
    session = scene.session()
    await session.append(turns(12))
    scene.endpoint.reply_with(*tool_turn())

    answer = await turn(agent, session, "1+2, 3+4")
    items = (await session.snapshot()).items
    later = await turn(agent, session, "thanks")

    assert (answer, later) == ("3 and 7", "You said: thanks")
    assert len(scene.requests) == 1
    assert kinds_of(scene.stands_for(items))[24:] == [
        "message",
        "reasoning",
        "function_call",
        "function_call",
        "function_call_output",
        "function_call_output",
        "reasoning",
        "message",
    ]


async def test_a_turn_below_the_threshold_is_stored_and_nothing_else(
    scene: Scene, agent: Agent[None]
) -> None:
    session = scene.session()

    await plain(agent, session, "hello")

    assert scene.requests == []
    assert [item["role"] for item in (await session.snapshot()).items] == ["user", "assistant"]
    assert (await scene.chain()).response_id is not None


async def test_without_a_compactor_a_turn_is_stored_and_nothing_else(
    scene: Scene,
    agent: Agent[None],
    turn: Turn,
) -> None:
    session = scene.store.session("s")
    await session.append(turns(12))

    await turn(agent, session, "hello")

    assert scene.requests == []
    assert len((await session.snapshot()).items) == 26


async def test_a_whole_run_follows_its_stored_chain(scene: Scene, agent: Agent[None]) -> None:
    """What the run read, sent and stored is what the provider stored."""
    session = scene.session(ALWAYS)

    await plain(agent, session, "hello " * 50)

    assert scene.modes == ["previous_response_id"]
    assert await scene.chain() == NO_CHAIN


async def test_a_run_that_stores_no_responses_sends_its_items(scene: Scene, agent: Agent[None]) -> None:
    agent.model_settings = ModelSettings(store=False)
    session = scene.session(ALWAYS)

    await plain(agent, session, "hello " * 50)

    assert scene.modes == ["input"]


async def test_an_append_of_another_worker_during_a_turns_compaction_stays(
    scene: Scene,
    agent: Agent[None],
    turn: Turn,
) -> None:
    session = scene.session()
    await session.append(turns(12))
    late = said("from another worker 🧊\x00")

    async with scene.during(turn(agent, session, "hello")) as run:
        await scene.foreign.append(late)
    answer = await run
    items = (await session.snapshot()).items

    assert answer == "You said: hello"
    assert items[-1:] == late
    assert len(scene.stands_for(items)) == 27
    assert len(scene.requests) == 1


async def test_a_clear_of_another_worker_during_a_turns_compaction_stays(
    scene: Scene,
    agent: Agent[None],
    turn: Turn,
) -> None:
    session = scene.session()
    await session.append(turns(12))

    async with scene.during(turn(agent, session, "hello")) as run:
        await scene.foreign.clear()
    answer = await run

    assert answer == "You said: hello"
    assert (await session.snapshot()).items == []
    assert await scene.chain() == NO_CHAIN
    assert len(scene.requests) == 1


async def test_a_clear_while_the_model_answers_leaves_only_what_the_run_appends_afterwards(
    scene: Scene, agent: Agent[None]
) -> None:
    """Nothing from before the clear is sent to the compact endpoint or stored again."""
    session = scene.session(ALWAYS)
    await session.append(said("secret " * 50))

    async with scene.endpoint.hold("responses") as hold:
        run = asyncio.create_task(plain(agent, session, "hello"))
        await hold.arrived()
        await scene.foreign.clear()
        hold.release()
        await run
    items = scene.stands_for((await session.snapshot()).items)

    assert all("secret" not in str(request.body) for request in scene.requests)
    assert scene.modes in ([], ["input"])
    assert "secret" not in str(items)


@pytest.mark.parametrize("fault", [Fault.server_error(), Fault.output([]), Fault.not_json(), Fault.reset()])
async def test_a_failing_compaction_fails_no_turn(
    scene: Scene,
    agent: Agent[None],
    turn,
    fault: Fault,  # type: ignore[no-untyped-def]
) -> None:
    session = scene.session(CompactionPolicy(max_model_calls=1))
    await session.append(turns(12))
    scene.endpoint.fail_next(fault, path="compact")

    answer = await turn(agent, session, "hello")

    assert answer == "You said: hello"
    assert len((await session.snapshot()).items) == 26


async def test_the_usage_of_every_compaction_call_is_added_to_the_run(
    scene: Scene, agent: Agent[None]
) -> None:
    """Of the one whose answer was thrown away too."""
    session = scene.session(CompactionPolicy.strict())
    await session.append(turns(12))
    context = RunContextWrapper(context=None)

    async with scene.during(session.run_compaction(wrapper=context)):
        await scene.foreign.append(turns(1))

    assert context.usage.requests == len(scene.requests) == 2
    assert context.usage.total_tokens == context.usage.input_tokens + context.usage.output_tokens > 0


async def test_switched_off_by_the_environment(
    scene: Scene, agent: Agent[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAS_SESSION_COMPACTION", "off")
    session = scene.session()
    await session.append(turns(12))

    await plain(agent, session, "hello")

    assert scene.requests == []
    assert len((await session.snapshot()).items) == 26


async def test_ten_turns_in_a_row_stay_valid_and_complete(
    scene: Scene, agent: Agent[None], turn: Turn
) -> None:
    """Compacted after each: every request is accepted, and no user message is lost."""
    session = scene.session(ALWAYS)

    for number in range(10):
        scene.endpoint.reply_with(*tool_turn())
        await turn(agent, session, f"question {number} " * 20)
    items = (await session.snapshot()).items
    covered = scene.stands_for(items)

    assert kinds_of(items).count("compaction") == 1
    assert kinds_of(covered).count("function_call") == kinds_of(covered).count("function_call_output") == 20
    assert [str(item["content"]).count("question") for item in covered if item.get("role") == "user"] == [
        20
    ] * 10
    assert all(request.status == 200 for request in scene.endpoint.requests)
