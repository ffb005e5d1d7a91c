"""What the runner does with a session, scenario by scenario: what is stored, and that it is valid input."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrail,
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    ModelSettings,
    OutputGuardrail,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    Runner,
)
from agents.memory import SessionSettings
from agents.models.fake_id import FAKE_RESPONSES_ID
from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel
from agents.result import RunResult
from agents.testing import ModelStep, ScriptedModel, assistant_message
from openai import AsyncOpenAI, BadRequestError
from openai.types.responses import ResponseFunctionToolCall, ResponseReasoningItem

from cas_session import CasSession, SessionStore
from cas_session.testing.endpoint import Fault, Reply, ResponsesEndpoint
from cas_session.testing.replies import function_call
from tests.agents.runs import (
    QUIET,
    add,
    kinds,
    new_agent,
    refused,
    said_by_user,
    sent_to_compact,
    turn,
)

both_ways = pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])

TOOL_TURN = ["user", "function_call", "function_call_output", "assistant"]


@both_ways
async def test_a_plain_turn_stores_the_input_and_the_reply(
    plain: CasSession, agent: Agent[None], streamed: bool
) -> None:
    """The next turn's model sees both."""
    await turn(agent, "hello", plain, streamed=streamed)
    second = await turn(agent, "again", plain, streamed=streamed)

    assert kinds(await plain.get_items()) == ["user", "assistant", "user", "assistant"]
    assert second.final_output == "You said: again"
    assert [op.kind for op in await plain.operations()] == ["append"] * 4


@both_ways
async def test_a_tool_turn_stores_call_and_output_in_one_write(
    endpoint: ResponsesEndpoint, plain: CasSession, agent: Agent[None], streamed: bool
) -> None:
    endpoint.reply_with(Reply.calls(("add", {"a": 1, "b": 2})), Reply.text("3"))

    await turn(agent, "1+2", plain, streamed=streamed)
    await turn(agent, "thanks", plain, streamed=streamed)

    assert [*TOOL_TURN, "user", "assistant"] == kinds(await plain.get_items())
    assert await batches(plain) == [1, 2, 1, 1, 1]
    assert refused(endpoint) == []


@both_ways
async def test_parallel_tools_and_their_reasoning_stay_together(
    endpoint: ResponsesEndpoint, plain: CasSession, agent: Agent[None], streamed: bool
) -> None:
    endpoint.reply_with(
        Reply.calls(("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4}), reasoning="Two sums."),
        Reply.text("3 and 7", reasoning="Both are there."),
    )

    await turn(agent, "1+2, 3+4", plain, streamed=streamed)
    await turn(agent, "thanks", plain, streamed=streamed)

    calls = ["function_call"] * 2 + ["function_call_output"] * 2
    assert ["user", "reasoning", *calls, "reasoning", "assistant"] == kinds(await plain.get_items())[:8]
    assert await batches(plain) == [1, 5, 2, 1, 1]
    assert refused(endpoint) == []


@both_ways
async def test_a_handoff_is_stored_as_a_call_and_its_output(
    endpoint: ResponsesEndpoint, plain: CasSession, client: AsyncOpenAI, streamed: bool
) -> None:
    agent = new_agent(client, name="First", handoffs=[new_agent(client, name="Second")])
    endpoint.reply_with(Reply.of(function_call("transfer_to_second")), Reply.text("I am the second."))

    first = await turn(agent, "hand over", plain, streamed=streamed)
    await turn(agent, "thanks", plain, streamed=streamed)

    assert first.last_agent.name == "Second"
    assert [*TOOL_TURN, "user", "assistant"] == kinds(await plain.get_items())
    assert refused(endpoint) == []


@both_ways
async def test_stop_on_first_tool_leaves_the_pair_and_asks_for_no_compaction(
    endpoint: ResponsesEndpoint, session: CasSession, client: AsyncOpenAI, streamed: bool
) -> None:
    """The next turn, which ends with a reply, makes up for it."""
    stopping = new_agent(client, tool_use_behavior="stop_on_first_tool")
    endpoint.reply_with(
        Reply.calls(("add", {"a": 1, "b": 2})), Reply.calls(("add", {"a": 1, "b": 3})), Reply.text("done")
    )

    await turn(stopping, "1+2", session, streamed=streamed)
    await turn(stopping, "1+3", session, streamed=streamed)
    before = kinds(await session.get_items())
    await turn(new_agent(client), "and", session, streamed=streamed)

    assert TOOL_TURN[:3] * 2 == before
    assert len(endpoint.compact_requests) == 1
    assert kinds(await session.get_items()) == ["user", "user", "user", "compaction"]
    assert refused(endpoint) == []


@both_ways
async def test_an_open_approval_is_not_compacted_away(
    endpoint: ResponsesEndpoint, session: CasSession, agent: Agent[None], streamed: bool
) -> None:
    """Neither by the turn that asks for it, nor before it is resumed."""
    await turn(agent, "hello", session, streamed=streamed)
    endpoint.reply_with(Reply.calls(("pay", {"amount": 5})), Reply.text("paid"))

    asked = await turn(agent, "pay 5", session, streamed=streamed)
    open_history = kinds(await session.get_items())
    state = asked.to_state()  # type: ignore[attr-defined]
    state.approve(asked.interruptions[0])
    resumed = await turn(agent, state, session, streamed=streamed)

    assert open_history[-4:] == ["user", "assistant", "user", "function_call"]
    assert resumed.final_output == "paid"
    assert kinds(await session.get_items()) == ["user", "user", "compaction"]
    assert refused(endpoint) == []


@both_ways
async def test_a_rejected_approval_is_stored_as_the_calls_output(
    endpoint: ResponsesEndpoint, plain: CasSession, agent: Agent[None], streamed: bool
) -> None:
    endpoint.reply_with(Reply.calls(("pay", {"amount": 5})), Reply.text("as you wish"))

    asked = await turn(agent, "pay 5", plain, streamed=streamed)
    state = asked.to_state()  # type: ignore[attr-defined]
    state.reject(asked.interruptions[0])
    await turn(agent, state, plain, streamed=streamed)
    await turn(agent, "thanks", plain, streamed=streamed)

    assert [*TOOL_TURN, "user", "assistant"] == kinds(await plain.get_items())
    assert refused(endpoint) == []


@both_ways
@pytest.mark.parametrize("parallel", [True, False], ids=["parallel", "blocking"])
async def test_a_tripped_input_guardrail_leaves_the_input_and_valid_history(
    endpoint: ResponsesEndpoint, session: CasSession, client: AsyncOpenAI, parallel: bool, streamed: bool
) -> None:
    async def trip(context: Any, agent: Any, said: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=True)

    guarded = new_agent(client, input_guardrails=[InputGuardrail(trip, run_in_parallel=parallel)])

    with pytest.raises(InputGuardrailTripwireTriggered):
        await turn(guarded, "forbidden", session, streamed=streamed)
    stored = kinds(await session.get_items())
    await turn(new_agent(client), "hello", session, streamed=streamed)

    assert stored[:1] == ["user"]
    assert refused(endpoint) == []


@both_ways
async def test_a_tripped_output_guardrail_leaves_valid_history(
    endpoint: ResponsesEndpoint, session: CasSession, client: AsyncOpenAI, streamed: bool
) -> None:
    async def trip(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=True)

    guarded = new_agent(client, output_guardrails=[OutputGuardrail(trip)])
    endpoint.reply_with(Reply.calls(("add", {"a": 1, "b": 2})), Reply.text("forbidden"))

    with pytest.raises(OutputGuardrailTripwireTriggered):
        await turn(guarded, "1+2", session, streamed=streamed)
    stored = kinds(await session.get_items())
    await turn(new_agent(client), "hello", session, streamed=streamed)

    assert TOOL_TURN[:3] == stored[:3]
    assert refused(endpoint) == []


@both_ways
async def test_a_failing_model_leaves_the_input(
    endpoint: ResponsesEndpoint, session: CasSession, agent: Agent[None], streamed: bool
) -> None:
    endpoint.fail_next(Fault.error(400), path="responses")

    with pytest.raises(BadRequestError):
        await turn(agent, "hello", session, streamed=streamed)
    await turn(agent, "again", session, streamed=streamed)

    assert kinds(await session.get_items()) == ["user", "user", "assistant"]
    assert len(refused(endpoint)) == 1


@both_ways
async def test_a_failing_tool_leaves_no_call_without_its_output(
    endpoint: ResponsesEndpoint, session: CasSession, agent: Agent[None], streamed: bool
) -> None:
    endpoint.reply_with(
        Reply.calls(("add", {"a": 1, "b": 2})), Reply.calls(("explode", {})), Reply.text("well")
    )

    with pytest.raises(Exception, match="boom"):
        await turn(agent, "1+2", session, streamed=streamed)
    await turn(agent, "again", session, streamed=streamed)

    assert "compaction" in kinds(await session.get_items())
    assert refused(endpoint) == []


@both_ways
async def test_a_run_that_reaches_max_turns_leaves_whole_pairs(
    endpoint: ResponsesEndpoint, plain: CasSession, agent: Agent[None], streamed: bool
) -> None:
    endpoint.reply_with(*[Reply.calls(("add", {"a": 1, "b": 2})) for _ in range(2)], Reply.text("3"))

    with pytest.raises(MaxTurnsExceeded):
        await turn(agent, "1+2", plain, streamed=streamed, max_turns=2)
    stored = kinds(await plain.get_items())
    await turn(agent, "go on", plain, streamed=streamed)

    assert ["user", *["function_call", "function_call_output"] * 2] == stored
    assert refused(endpoint) == []


async def test_a_cancelled_run_leaves_valid_history(
    endpoint: ResponsesEndpoint, session: CasSession, agent: Agent[None]
) -> None:
    """Whole pairs, and the session takes the next turn at once."""
    endpoint.reply_with(Reply.calls(("add", {"a": 1, "b": 2})), Reply.text("3"))
    async with endpoint.hold("responses") as hold:
        running = asyncio.create_task(turn(agent, "1+2", session))
        await hold.arrived()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    await turn(agent, "again", session)

    assert kinds(await session.get_items())[:2] == ["user", "user"]
    assert [request for request in refused(endpoint) if request.status is not None] == []


async def test_a_stream_that_is_cancelled_after_the_turn_leaves_valid_history(
    endpoint: ResponsesEndpoint, plain: CasSession, agent: Agent[None]
) -> None:
    endpoint.reply_with(Reply.calls(("add", {"a": 1, "b": 2})), Reply.text("never"))
    result = Runner.run_streamed(agent, "1+2", session=plain, run_config=QUIET)
    async for event in result.stream_events():
        if event.type == "run_item_stream_event":
            result.cancel(mode="after_turn")
    stored = kinds(await plain.get_items())

    await turn(agent, "again", plain)

    assert TOOL_TURN[:3] == stored
    assert refused(endpoint) == []


@both_ways
async def test_a_stream_that_breaks_leaves_valid_history(
    endpoint: ResponsesEndpoint, session: CasSession, agent: Agent[None], streamed: bool
) -> None:
    endpoint.fail_next(Fault.truncated(), path="responses")

    with pytest.raises(Exception, match=r"."):
        await turn(agent, "hello", session, streamed=streamed)
    await turn(agent, "again", session, streamed=streamed)

    assert kinds(await session.get_items()) == ["user", "user", "assistant"]


async def test_a_model_of_chat_completions_is_never_compacted_by_the_runner(
    session: CasSession, client: AsyncOpenAI
) -> None:
    """It gives no response ids."""
    agent = new_agent(client, tools=[])
    agent.model = OpenAIChatCompletionsModel(model="local", openai_client=client)

    for _ in range(3):
        await turn(agent, "hello", session)

    assert kinds(await session.get_items()) == ["user", "assistant"] * 3
    assert await session.compactions() == []


@both_ways
async def test_what_a_model_without_ids_left_can_be_compacted_by_hand(
    endpoint: ResponsesEndpoint, session: CasSession, streamed: bool
) -> None:
    """Placeholder ids and what other providers keep with an item are taken off, in the request only."""
    thought = ResponseReasoningItem(
        id=FAKE_RESPONSES_ID,
        type="reasoning",
        summary=[],
        provider_data={"model": "other"},  # type: ignore[call-arg]
    )
    asked = ResponseFunctionToolCall(
        id=FAKE_RESPONSES_ID, type="function_call", name="add", arguments='{"a": 1, "b": 2}', call_id="call_1"
    )
    said = assistant_message("3")
    said.id = FAKE_RESPONSES_ID
    model = ScriptedModel(
        [ModelStep(output=[thought, asked], response_id=None), ModelStep(output=[said], response_id=None)]
    )
    await turn(Agent(name="Scripted", model=model, tools=[add]), "1+2", session, streamed=streamed)
    stored = await session.get_items()

    report = await session.compact(force=True)

    assert ["user", "reasoning", *TOOL_TURN[1:]] == kinds(stored)
    assert [None, *[FAKE_RESPONSES_ID] * 2, None, FAKE_RESPONSES_ID] == [item.get("id") for item in stored]
    assert report.status == "applied"
    assert ["user", *TOOL_TURN[1:]] == kinds(sent_to_compact(endpoint.compact_requests[0]))


@both_ways
async def test_compaction_items_of_the_server_are_stored_and_sent_again(
    endpoint: ResponsesEndpoint, session: CasSession, client: AsyncOpenAI, streamed: bool
) -> None:
    """With context_management the model's own output holds a compaction; ours then folds what is there."""
    settings = ModelSettings(context_management=[{"type": "compaction", "compact_threshold": 1}])
    agent = new_agent(client, model_settings=settings)

    first = await turn(agent, "hello", session, streamed=streamed)
    stored = kinds(await session.get_items())
    for text in ("again", "and again"):
        await turn(agent, text, session, streamed=streamed)

    assert first.final_output == "You said: hello"
    assert stored == ["user", "compaction", "assistant"]
    assert len(endpoint.compact_requests) >= 1
    assert refused(endpoint) == []
    assert kinds(await session.get_items()) == ["user", "user", "user", "compaction"]


async def test_the_run_configs_session_settings_limit_what_the_model_sees(
    endpoint: ResponsesEndpoint, plain: CasSession, agent: Agent[None]
) -> None:
    """They win over the session's; what is stored is not touched."""
    plain.session_settings = SessionSettings(limit=4)
    for text in ("one", "two", "three"):
        await turn(agent, text, plain)

    await turn(agent, "four", plain)
    await turn(agent, "five", plain, config=limited(2))

    four, five = endpoint.requests[-2:]
    assert four.body is not None
    assert five.body is not None
    assert said_by_user(four.body["input"]) == ["two", "three", "four"]
    assert said_by_user(five.body["input"]) == ["four", "five"]
    assert len(await plain.get_items(limit=100)) == 10
    assert len(await plain.get_items()) == 4


@both_ways
async def test_a_read_limit_leaves_no_part_of_a_tool_pair_to_the_model(
    endpoint: ResponsesEndpoint, session: CasSession, agent: Agent[None], streamed: bool
) -> None:
    """And it is no filter: the whole history is compacted."""
    endpoint.reply_with(Reply.calls(("add", {"a": 1, "b": 2})), Reply.text("3"))
    await turn(agent, "1+2", session, streamed=streamed, config=limited(2))
    endpoint.requests.clear()

    await turn(agent, "thanks", session, streamed=streamed, config=limited(2))

    assert refused(endpoint) == []
    assert kinds(await session.get_items()) == ["user", "user", "compaction"]


async def test_the_input_callback_decides_what_the_model_sees(
    endpoint: ResponsesEndpoint, plain: CasSession, agent: Agent[None]
) -> None:
    """What it adds to the new input is stored, what it drops of the history stays stored."""

    def only_new(history: list[Any], new: list[Any]) -> list[Any]:
        return [{"role": "developer", "content": "Be brief."}, *new]

    await turn(agent, "hello", plain)
    await turn(agent, "again", plain, config=RunConfig(session_input_callback=only_new))

    body = endpoint.requests[-1].body
    assert body is not None
    assert said_by_user(body["input"]) == ["again"]
    assert kinds(await plain.get_items()) == ["user", "assistant", "developer", "user", "assistant"]


@both_ways
async def test_unstored_responses_keep_their_encrypted_reasoning(
    endpoint: ResponsesEndpoint, session: CasSession, client: AsyncOpenAI, streamed: bool
) -> None:
    """With store=False nothing names a response, and every item goes to the compaction."""
    settings = ModelSettings(store=False, response_include=["reasoning.encrypted_content"])
    agent = new_agent(client, model_settings=settings)
    endpoint.reply_with(
        Reply.calls(("add", {"a": 1, "b": 2}), reasoning="A sum."), Reply.text("3", reasoning="Easy.")
    )

    await turn(agent, "1+2", session, streamed=streamed)
    await turn(agent, "thanks", session, streamed=streamed)

    assert refused(endpoint) == []
    assert all("previous_response_id" not in (asked.body or {}) for asked in endpoint.compact_requests)
    assert kinds(await session.get_items()).count("compaction") == 1


def test_run_sync_from_several_threads_each_with_its_own_store(database_url: str) -> None:
    """One event loop a thread, one store a loop; all of them on one conversation."""

    def talk(number: int) -> str:
        async def open_store() -> SessionStore:
            return await SessionStore(database_url).open()

        with asyncio.Runner() as loops:
            store = loops.run(open_store())
            asyncio.set_event_loop(loops.get_loop())
            model = ScriptedModel([[assistant_message(f"answer {number}")]] * 3)
            agent: Agent[None] = Agent(name="Scripted", model=model)
            result: RunResult | None = None
            for _ in range(3):
                result = Runner.run_sync(
                    agent, f"question {number}", session=store.session("talk"), run_config=QUIET
                )
            loops.run(store.aclose())
            assert result is not None
            return str(result.final_output)

    with ThreadPoolExecutor(4) as threads:
        outputs = list(threads.map(talk, range(4)))

    async def read() -> list[Any]:
        async with SessionStore(database_url) as store:
            return list(await store.session("talk").get_items())

    items = asyncio.run(read())

    assert [f"answer {number}" for number in range(4)] == outputs
    assert sorted(f"question {number}" for number in range(4) for _ in range(3)) == sorted(
        said_by_user(items)
    )
    assert len(items) == 24


async def batches(session: CasSession) -> list[int]:
    """How many items each append brought, oldest first."""
    counts = [op.manifest.item_count for op in reversed(await session.operations())]
    return [after - before for before, after in zip([0, *counts], counts, strict=False)]


def limited(count: int) -> RunConfig:
    return RunConfig(tracing_disabled=True, session_settings=SessionSettings(limit=count))
