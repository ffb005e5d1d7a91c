"""Turns and the compactions between them: chain, deferral, usage, overlap, cancellation, erasure."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from agents import Agent, ModelSettings, RunConfig, RunContextWrapper, RunState
from agents.memory import SessionSettings
from agents.result import RunResult
from openai import AsyncOpenAI

from cas_session import CasSession, SessionStore
from cas_session.compaction.policy import when_candidates, when_items
from cas_session.testing.endpoint import Fault, LoggedRequest, Reply, ResponsesEndpoint
from tests.agents.runs import (
    compacting_session,
    kinds,
    new_agent,
    refused,
    said_by_user,
    sent_to_compact,
    turn,
)
from tests.session.items import said, turns
from tests.session.stores import Around, Gate, Patched, row_of

both_ways = pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])


def names_response(request: LoggedRequest) -> bool:
    return request.body is not None and "previous_response_id" in request.body


# -- how the model gets the history


@both_ways
async def test_a_run_alone_on_its_session_lets_its_response_stand_for_the_history(
    endpoint: ResponsesEndpoint, session: CasSession, agent: Agent[None], streamed: bool
) -> None:
    """Auto mode: nothing is sent again, and the compaction covers everything that was said."""
    await turn(agent, "hello", session, streamed=streamed)
    await turn(agent, "again", session, streamed=streamed)

    items = await session.get_items()
    assert [names_response(request) for request in endpoint.compact_requests] == [True]
    assert kinds(items) == ["user", "user", "compaction"]
    covered = endpoint.unseal(items[-1]["encrypted_content"])  # type: ignore[typeddict-item,arg-type]
    assert kinds(covered) == ["user", "assistant"] * 2


async def test_a_write_by_another_worker_since_the_runs_read_means_input_mode(
    endpoint: ResponsesEndpoint, session: CasSession, agent: Agent[None], other: SessionStore
) -> None:
    """The response does not know of it; what was appended is sent and covered too."""
    await turn(agent, "hello", session)
    async with endpoint.hold("responses") as hold:
        running = asyncio.create_task(turn(agent, "again", session))
        await hold.arrived()
        await other.session("talk").append(said("from elsewhere"))
        hold.release()
        await running

    asked = endpoint.compact_requests[0]
    assert not names_response(asked)
    assert said_by_user(sent_to_compact(asked)) == ["hello", "again", "from elsewhere"]
    assert said_by_user(await session.get_items()) == ["hello", "again", "from elsewhere"]


async def test_two_runs_that_read_the_same_do_not_take_each_others_writes_for_theirs(
    endpoint: ResponsesEndpoint, session: CasSession, agent: Agent[None]
) -> None:
    """Both end due for a compaction: neither response covers the other run's turn."""
    await turn(agent, "hello", session)
    async with endpoint.hold("responses") as hold:
        runs = [asyncio.create_task(turn(agent, text, session)) for text in ("one", "two")]
        for _ in runs:
            await hold.arrived()
        hold.release()
        await asyncio.gather(*runs)

    assert not any(map(names_response, endpoint.compact_requests))
    assert sorted(said_by_user(await session.get_items())) == ["hello", "one", "two"]
    assert refused(endpoint) == []


async def test_a_read_limit_means_input_mode_and_the_whole_history(
    endpoint: ResponsesEndpoint, session: CasSession, agent: Agent[None]
) -> None:
    config = RunConfig(tracing_disabled=True, session_settings=SessionSettings(limit=2))
    await session.append(turns(2))

    await turn(agent, "hello", session, config=config)

    asked = endpoint.compact_requests[0]
    assert said_by_user(sent_to_compact(asked)) == ["question 0", "question 1", "hello"]


async def test_after_a_read_limit_the_response_stands_for_nothing_also_where_no_other_mode_is_allowed(
    endpoint: ResponsesEndpoint, store: SessionStore, client: AsyncOpenAI, agent: Agent[None]
) -> None:
    """It does not hold the items that the run did not read: they would be lost."""
    session = compacting_session(store, client, mode="previous_response_id")
    config = RunConfig(tracing_disabled=True, session_settings=SessionSettings(limit=2))
    await session.append(turns(2))

    await turn(agent, "hello", session, config=config)

    assert endpoint.compact_requests == []
    assert said_by_user(await session.get_items()) == ["question 0", "question 1", "hello"]
    with pytest.raises(ValueError, match="requires a response_id"):
        await session.compact(force=True)


async def test_a_response_whose_tool_outputs_are_not_answered_is_not_recorded(
    endpoint: ResponsesEndpoint, store: SessionStore, client: AsyncOpenAI
) -> None:
    """It does not hold the outputs. By hand the items are sent."""
    session = compacting_session(store, client, trigger=when_items(1))
    endpoint.reply_with(Reply.calls(("add", {"a": 1, "b": 2})))
    await turn(new_agent(client, tool_use_behavior="stop_on_first_tool"), "1+2", session)
    recorded = (await row_of(store, "talk")).chain

    report = await session.compact(force=True)

    assert (recorded.response_id, recorded.deferred_id is None) == (None, False)
    assert (report.status, report.mode) == ("applied", "input")
    assert refused(endpoint) == []


async def test_an_unstored_response_is_never_named(
    endpoint: ResponsesEndpoint, session: CasSession, client: AsyncOpenAI
) -> None:
    agent = new_agent(client, model_settings=ModelSettings(store=False))

    for text in ("hello", "again"):
        await turn(agent, text, session)

    assert [names_response(request) for request in endpoint.compact_requests] == [False]


async def test_the_next_turn_after_a_compaction_reads_what_it_left(
    endpoint: ResponsesEndpoint, session: CasSession, agent: Agent[None]
) -> None:
    for text in ("hello", "again", "and again"):
        await turn(agent, text, session)

    asked = [request for request in endpoint.requests if request.path.endswith("/responses")]
    assert asked[-1].body is not None
    assert kinds(asked[-1].body["input"]) == ["user", "user", "compaction", "user"]
    assert refused(endpoint) == []


# -- deferral


@both_ways
async def test_a_compaction_that_is_due_at_a_tool_output_waits_for_the_reply(
    endpoint: ResponsesEndpoint, store: SessionStore, client: AsyncOpenAI, streamed: bool
) -> None:
    """And then happens whatever the trigger says."""
    due = iter([True, False])
    session = compacting_session(store, client, trigger=lambda context: next(due))
    endpoint.reply_with(Reply.calls(("add", {"a": 1, "b": 2})), Reply.text("3"))

    await turn(new_agent(client), "1+2", session, streamed=streamed)

    assert [request.path for request in endpoint.requests][-1].endswith("compact")
    assert kinds(await session.get_items()) == ["user", "compaction"]
    assert session._get_deferred_compaction_response_id() is None


async def test_a_deferral_is_seen_by_the_worker_that_takes_the_next_turn(
    endpoint: ResponsesEndpoint, store: SessionStore, other: SessionStore, client: AsyncOpenAI
) -> None:
    """The mark is in the session's row."""
    due = iter([True, False, False])
    here = compacting_session(store, client, trigger=lambda context: next(due))
    there = compacting_session(other, client, trigger=lambda context: next(due))
    stopping = new_agent(client, tool_use_behavior="stop_on_first_tool")
    endpoint.reply_with(Reply.calls(("add", {"a": 1, "b": 2})), Reply.text("3"))

    await turn(stopping, "1+2", here)
    marked = (await row_of(store, "talk")).chain.deferred_id
    await turn(new_agent(client), "and", there)

    assert marked is not None
    assert len(endpoint.compact_requests) == 1
    assert kinds(await there.get_items()) == ["user", "user", "compaction"]


async def test_a_deferral_of_a_resumed_run_names_no_response(
    endpoint: ResponsesEndpoint, store: SessionStore, other: SessionStore, client: AsyncOpenAI
) -> None:
    """What the resumed run's model was given is not known there: the mark is kept, the chain is not."""
    agent = new_agent(client)
    endpoint.reply_with(Reply.calls(("pay", {"amount": 5})), Reply.text("paid"))
    here = compacting_session(store, client, trigger=when_items(100))
    asked = await turn(agent, "pay 5", here)
    state = await RunState.from_string(agent, state_of(asked).to_string())
    approve_all(state)
    await here.clear()
    due = iter([True, False])
    there = compacting_session(other, client, trigger=lambda context: next(due))

    await turn(agent, state, there)

    assert kinds(await there.get_items()) == ["function_call_output", "assistant"]
    assert endpoint.compact_requests == []
    assert (await row_of(store, "talk")).chain.response_id is None


# -- what the run is told


@both_ways
async def test_the_compactions_usage_is_added_to_the_runs(
    endpoint: ResponsesEndpoint, session: CasSession, agent: Agent[None], streamed: bool
) -> None:
    await turn(agent, "hello", session, streamed=streamed)

    result = await turn(agent, "again", session, streamed=streamed)

    usage = result.context_wrapper.usage
    attempt = (await session.compactions())[0]
    paid = json.loads(attempt.usage or "{}")
    assert usage.requests == 2
    assert usage.request_usage_entries[-1].total_tokens == paid["total_tokens"] > 0
    assert usage.total_tokens == sum(entry.total_tokens for entry in usage.request_usage_entries)


async def test_the_usage_of_an_answer_that_is_thrown_away_is_added_too(
    endpoint: ResponsesEndpoint, session: CasSession, agent: Agent[None], other: SessionStore
) -> None:
    await turn(agent, "hello", session)
    async with endpoint.hold("compact") as hold:
        running = asyncio.create_task(turn(agent, "again", session))
        await hold.arrived()
        await other.session("talk").clear()
        hold.release()
        result = await running

    assert (await session.compactions())[0].decision == "no_longer_needed"
    assert result.context_wrapper.usage.requests == 2
    assert result.context_wrapper.usage.request_usage_entries[-1].input_tokens > 0


@pytest.mark.parametrize(
    "fault",
    [Fault.server_error(), Fault.not_found(), Fault.not_json(), Fault.empty_object(), Fault.reset()],
    ids=["500", "404", "no JSON", "empty object", "reset"],
)
@both_ways
async def test_a_failing_compaction_fails_no_turn(
    endpoint: ResponsesEndpoint, session: CasSession, agent: Agent[None], fault: Fault, streamed: bool
) -> None:
    await turn(agent, "hello", session, streamed=streamed)
    endpoint.fail_next(fault, path="compact", times=2)

    result = await turn(agent, "again", session, streamed=streamed)

    assert result.final_output == "You said: again"
    assert kinds(await session.get_items()) == ["user", "assistant"] * 2


async def test_a_fault_in_the_policy_or_in_the_runs_books_fails_no_turn(
    store: SessionStore, client: AsyncOpenAI, agent: Agent[None]
) -> None:
    def broken(context: Any) -> bool:
        raise KeyError("mine")

    session = compacting_session(store, client, trigger=broken)

    result = await turn(agent, "hello", session)

    assert result.final_output == "You said: hello"


# -- overlap, background


@both_ways
async def test_a_run_does_not_wait_for_the_compaction_of_another(
    endpoint: ResponsesEndpoint, session: CasSession, agent: Agent[None], streamed: bool
) -> None:
    """On the same object, with its own tool turn: all of it stays behind what the compaction left."""
    await turn(agent, "hello", session)
    async with endpoint.hold("compact") as hold:
        compacting = asyncio.create_task(turn(agent, "again", session))
        await hold.arrived()
        endpoint.reply_with(Reply.calls(("add", {"a": 1, "b": 2})), Reply.text("3"))
        other_run = await turn(agent, "1+2", session, streamed=streamed)
        still_waiting = not compacting.done()
        hold.release()
        await compacting

    assert other_run.final_output == "3"
    assert still_waiting
    assert kinds(await session.get_items()) == [
        *["user", "user", "compaction"],
        *["user", "function_call", "function_call_output", "assistant"],
    ]
    assert (await session.compactions())[-1].decision == "rebased"
    assert refused(endpoint) == []


@both_ways
async def test_in_background_mode_a_run_ends_without_waiting_for_its_compaction(
    endpoint: ResponsesEndpoint,
    database_url: str,
    client: AsyncOpenAI,
    agent: Agent[None],
    other: SessionStore,
    streamed: bool,
) -> None:
    """A stream's iterator closes at once; closing the store waits for the work."""
    store = await SessionStore(database_url).open()
    session = compacting_session(store, client, background=True)
    await turn(agent, "hello", session)
    async with endpoint.hold("compact") as hold:
        result = await turn(agent, "again", session, streamed=streamed)
        await hold.arrived()
        before = kinds(await session.get_items())
        hold.release()
        await store.aclose()

    assert result.final_output == "You said: again"
    assert before == ["user", "assistant"] * 2
    assert kinds(await other.session("talk").get_items()) == ["user", "user", "compaction"]


# -- cancellation


@both_ways
async def test_a_run_that_is_cancelled_during_the_model_call_leaves_the_turn(
    endpoint: ResponsesEndpoint, session: CasSession, agent: Agent[None], streamed: bool
) -> None:
    await turn(agent, "hello", session)
    async with endpoint.hold("compact") as hold:
        running = asyncio.create_task(turn(agent, "again", session, streamed=streamed))
        await hold.arrived()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    assert kinds(await session.get_items()) == ["user", "assistant"] * 2
    await turn(agent, "once more", session)
    assert kinds(await session.get_items()) == ["user"] * 3 + ["compaction"]
    assert [request for request in refused(endpoint) if request.status is not None] == []


@both_ways
async def test_a_run_cancelled_right_after_its_compaction_landed_is_resumed_from_its_serialised_state(
    endpoint: ResponsesEndpoint, patched: Patched, client: AsyncOpenAI, agent: Agent[None], streamed: bool
) -> None:
    """The compaction stays, nothing is stored twice, and every later request is accepted."""
    session = compacting_session(patched.store, client, mode="input")
    await turn(agent, "hello", session)
    endpoint.reply_with(
        *(Reply.calls(("pay", {"amount": amount})) for amount in (1, 2)), Reply.text("both are paid")
    )
    state = state_of(await turn(agent, "pay 1 and 2", session))
    approve_all(state)

    async def cancel_when_landed(verb: Around, write: Any) -> Any:
        landed = await verb(write)
        running.cancel()
        await asyncio.sleep(0)
        return landed

    patched.driver.around("replace", cancel_when_landed)
    running = asyncio.create_task(turn(agent, state, session, streamed=streamed))
    with pytest.raises(asyncio.CancelledError):
        await running

    resumed = await RunState.from_string(agent, state.to_string())
    approve_all(resumed)
    result = await turn(agent, resumed, session, streamed=streamed)
    await turn(agent, "thanks", session, streamed=streamed)

    assert [attempt.decision for attempt in await session.compactions()].count("applied") >= 2
    assert result.final_output == "both are paid"
    assert said_by_user(await session.get_items()) == ["hello", "pay 1 and 2", "thanks"]
    assert refused(endpoint) == []


async def test_the_run_knows_that_its_compaction_landed_before_the_cancellation_goes_on(
    patched: Patched, client: AsyncOpenAI
) -> None:
    """A resumed run settles its pending write by it."""
    session = compacting_session(patched.store, client)
    await session.append(turns(3))
    gate = Gate()
    patched.driver.around("replace", gate)
    context = RunContextWrapper(context=None)
    running = asyncio.create_task(session.run_compaction({"force": True}, wrapper=context))
    await gate.arrived.wait()
    running.cancel()
    gate.release.set()

    with pytest.raises(asyncio.CancelledError):
        await running

    assert context._session_compaction_completed is True  # type: ignore[attr-defined]


# -- erasure


@pytest.mark.parametrize("mode", ["auto", "input", "previous_response_id"])
@both_ways
async def test_what_another_worker_cleared_during_the_run_is_neither_sent_nor_stored_again(
    endpoint: ResponsesEndpoint,
    store: SessionStore,
    other: SessionStore,
    client: AsyncOpenAI,
    agent: Agent[None],
    mode: str,
    streamed: bool,
) -> None:
    """What the run itself appends after the clear lands."""
    session = compacting_session(store, client, mode=mode, trigger=when_items(1))
    await session.append(said("secret"))
    async with endpoint.hold("responses") as hold:
        running = asyncio.create_task(turn(agent, "again", session, streamed=streamed))
        await hold.arrived()
        await other.session("talk").clear()
        hold.release()
        await running

    items = await session.get_items()
    assert "secret" not in json.dumps(items)
    assert not any(map(names_response, endpoint.compact_requests))
    assert "secret" not in json.dumps([sent_to_compact(request) for request in endpoint.compact_requests])
    assert kinds(items) in (["assistant"], ["compaction"])


@pytest.mark.parametrize("mode", ["auto", "previous_response_id"])
async def test_what_was_cleared_during_a_tool_call_is_not_named_by_the_deferred_response(
    endpoint: ResponsesEndpoint,
    store: SessionStore,
    other: SessionStore,
    client: AsyncOpenAI,
    mode: str,
) -> None:
    """Also not when an overlapping run on the same object read after the clear."""
    session = compacting_session(store, client, mode=mode, trigger=when_items(1))
    await session.append(said("secret"))
    agent = new_agent(client)
    endpoint.reply_with(Reply.calls(("add", {"a": 1, "b": 2})), Reply.text("3"))
    async with endpoint.hold("responses") as hold:
        running = asyncio.create_task(turn(agent, "1+2", session))
        await hold.arrived()
        await other.session("talk").clear()
        await session.get_items()
        hold.release()
        await running

    assert not any(map(names_response, endpoint.compact_requests))
    assert "secret" not in json.dumps([sent_to_compact(request) for request in endpoint.compact_requests])
    assert "secret" not in json.dumps(await session.get_items())


@pytest.mark.parametrize("how", ["in this process", "from its serialised state"])
async def test_what_was_cleared_before_a_run_is_resumed_is_not_named_by_its_response(
    endpoint: ResponsesEndpoint, store: SessionStore, client: AsyncOpenAI, agent: Agent[None], how: str
) -> None:
    """The state holds the erased items, so that the model sees them: its response must not."""
    session = compacting_session(store, client, mode="previous_response_id", trigger=when_candidates(1))
    await session.append(said("secret"))
    endpoint.reply_with(Reply.calls(("pay", {"amount": 5})), Reply.text("paid"))
    state = state_of(await turn(agent, "pay 5", session))
    if how != "in this process":
        state = await RunState.from_string(agent, state.to_string())
    approve_all(state)
    await session.clear()

    await turn(agent, state, session)

    assert not any(map(names_response, endpoint.compact_requests))
    assert "secret" not in json.dumps([sent_to_compact(request) for request in endpoint.compact_requests])


def state_of(result: Any) -> RunState[Any, Any]:
    assert isinstance(result, RunResult)
    return result.to_state()


def approve_all(state: RunState[Any, Any]) -> None:
    for asked in state.get_interruptions():
        state.approve(asked)
