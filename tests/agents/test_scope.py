"""CompactionPolicy.scope: what happens after an input filter withheld stored items from a run's model."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from agents import Agent, RunConfig, RunState
from agents.handoffs import HandoffInputData, handoff
from agents.memory import SessionSettings
from agents.run import CallModelData, ModelInputData
from agents.run_internal.items import (
    deduplicate_input_items_preferring_latest,
    drop_orphan_function_calls,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI

from cas_session import CasSession, CompactionPolicy, Item, SessionStore
from cas_session.compaction.policy import when_items
from cas_session.compaction.replayed import count_replayed, outline
from cas_session.events import CompactionFinished
from cas_session.testing.endpoint import Reply, ResponsesEndpoint
from cas_session.testing.replies import function_call
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

both_ways = pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])


def newest(count: int) -> Callable[[CallModelData[Any]], ModelInputData]:
    """A filter that shows the model so many items."""

    def keep(data: CallModelData[Any]) -> ModelInputData:
        return ModelInputData(data.model_data.input[-count:], data.model_data.instructions)

    return keep


def through_callback(history: list[Any], new: list[Any]) -> list[Any]:
    return [*history[-1:], *new]


FILTERS = {
    "call_model_input_filter": RunConfig(tracing_disabled=True, call_model_input_filter=newest(2)),
    "session_input_callback": RunConfig(tracing_disabled=True, session_input_callback=through_callback),
}
by_filter = pytest.mark.parametrize("config", FILTERS.values(), ids=FILTERS)


async def status_of(session: CasSession, run: Any) -> str:
    """The status that the compaction after a turn reported."""
    reports: list[str] = []
    backend = session._backend
    hook = backend.hook
    backend.hook = lambda event: reports.append(event.report.status)  # type: ignore[union-attr]
    try:
        await run
    finally:
        backend.hook = hook
    return reports[-1]


@both_ways
@by_filter
async def test_scope_seen_sends_nothing_that_a_filter_withheld(
    endpoint: ResponsesEndpoint, session: CasSession, agent: Agent[None], config: RunConfig, streamed: bool
) -> None:
    await session.append(turns(3))

    status = await status_of(session, turn(agent, "hello", session, config=config, streamed=streamed))

    assert status == "withheld"
    assert endpoint.compact_requests == []
    assert kinds(await session.get_items()) == ["user", "assistant"] * 4
    assert await session.compactions() == []


@both_ways
@by_filter
async def test_scope_history_sends_everything_whatever_a_filter_did(
    endpoint: ResponsesEndpoint,
    store: SessionStore,
    client: AsyncOpenAI,
    agent: Agent[None],
    config: RunConfig,
    streamed: bool,
) -> None:
    """As items: the run's response knows only what its model saw."""
    session = compacting_session(store, client, scope="history")
    await session.append(turns(3))

    await turn(agent, "hello", session, config=config, streamed=streamed)

    asked = endpoint.compact_requests[0]
    assert said_by_user(sent_to_compact(asked)) == ["question 0", "question 1", "question 2", "hello"]
    assert kinds(await session.get_items()) == ["user"] * 4 + ["compaction"]


@pytest.mark.parametrize("scope", ["seen", "history"])
async def test_a_response_that_knows_a_part_never_stands_for_the_history(
    endpoint: ResponsesEndpoint, store: SessionStore, client: AsyncOpenAI, agent: Agent[None], scope: Any
) -> None:
    """Also not where previous_response_id is the only mode that is allowed."""
    session = compacting_session(store, client, scope=scope, mode="previous_response_id")
    await session.append(turns(3))
    config = FILTERS["call_model_input_filter"]

    status = await status_of(session, turn(agent, "hello", session, config=config))

    assert status == "withheld"
    assert len(await session.get_items()) == 8


async def test_the_next_run_without_a_filter_makes_up_for_it(
    endpoint: ResponsesEndpoint, session: CasSession, agent: Agent[None]
) -> None:
    await session.append(turns(3))
    await turn(agent, "hello", session, config=FILTERS["call_model_input_filter"])

    await turn(agent, "again", session)

    assert kinds(await session.get_items()) == ["user"] * 5 + ["compaction"]
    assert refused(endpoint) == []


async def test_a_read_limit_is_no_filter(
    endpoint: ResponsesEndpoint, session: CasSession, agent: Agent[None]
) -> None:
    config = RunConfig(tracing_disabled=True, session_settings=SessionSettings(limit=2))
    await session.append(turns(3))

    assert await status_of(session, turn(agent, "hello", session, config=config)) == "applied"


async def test_a_filter_below_the_read_limit_is_one(session: CasSession, agent: Agent[None]) -> None:
    config = RunConfig(
        tracing_disabled=True,
        session_settings=SessionSettings(limit=4),
        call_model_input_filter=newest(3),
    )
    await session.append(turns(3))

    assert await status_of(session, turn(agent, "hello", session, config=config)) == "withheld"


@both_ways
async def test_a_tool_turn_with_parallel_calls_withholds_nothing(
    endpoint: ResponsesEndpoint, session: CasSession, agent: Agent[None], streamed: bool
) -> None:
    endpoint.reply_with(
        Reply.calls(("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4}), reasoning="Two sums."),
        Reply.text("3 and 7", reasoning="Both are there."),
    )

    assert await status_of(session, turn(agent, "1+2, 3+4", session, streamed=streamed)) == "applied"


async def test_a_call_that_the_runner_itself_leaves_out_is_not_withheld(
    store: SessionStore, client: AsyncOpenAI, agent: Agent[None]
) -> None:
    """An unanswered call of yesterday must not switch compaction off for ever."""
    session = compacting_session(store, client, open_call_age_s=1e-6, trigger=when_items(8))
    await session.append([*said("old"), function_call("add", a=1, b=2), *turns(2)])

    assert await status_of(session, turn(agent, "hello", session)) == "applied"


async def test_a_handoffs_input_filter_is_a_filter(
    endpoint: ResponsesEndpoint, session: CasSession, client: AsyncOpenAI
) -> None:
    def drop_all(data: HandoffInputData) -> HandoffInputData:
        return data.clone(input_history=(), pre_handoff_items=())

    second = new_agent(client, name="Second")
    first = new_agent(client, name="First", handoffs=[handoff(second, input_filter=drop_all)])
    endpoint.reply_with(Reply.of(function_call("transfer_to_second")), Reply.text("I am the second."))
    await session.append(turns(3))

    assert await status_of(session, turn(first, "hand over", session)) == "withheld"


@pytest.mark.parametrize("filtered", [False, True], ids=["unfiltered", "filtered"])
async def test_a_run_that_is_resumed_elsewhere_is_measured_by_the_whole_history(
    endpoint: ResponsesEndpoint,
    store: SessionStore,
    other: SessionStore,
    client: AsyncOpenAI,
    agent: Agent[None],
    filtered: bool,
) -> None:
    """What it read is not known there."""
    await store.session("talk").append(turns(3))
    endpoint.reply_with(Reply.calls(("pay", {"amount": 5})), Reply.text("paid"))
    asked: Any = await turn(agent, "pay 5", store.session("talk"))
    state = await RunState.from_string(agent, asked.to_state().to_string())
    state.approve(state.get_interruptions()[0])
    there = compacting_session(other, client)
    config = FILTERS["call_model_input_filter"] if filtered else RunConfig(tracing_disabled=True)

    status = await status_of(there, turn(agent, state, there, config=config))

    assert status == ("withheld" if filtered else "applied")


async def test_in_background_mode_a_filter_counts_as_well(
    endpoint: ResponsesEndpoint, database_url: str, client: AsyncOpenAI, agent: Agent[None]
) -> None:
    """The work begins when the runner has forgotten the run."""
    reports: list[str] = []

    def hook(event: Any) -> None:
        if isinstance(event, CompactionFinished):
            reports.append(event.report.status)

    async with SessionStore(database_url, on_event=hook) as store:
        session = compacting_session(store, client, background=True)
        await session.append(turns(3))
        await turn(agent, "hello", session, config=FILTERS["call_model_input_filter"])

    assert reports == ["withheld"]
    assert endpoint.compact_requests == []


async def test_a_wrapper_that_reads_another_session_too_counts_this_one_alone(
    store: SessionStore, client: AsyncOpenAI, agent: Agent[None]
) -> None:
    """What the other session read is no part of the run's history here."""
    session, notes = compacting_session(store, client), store.session("notes")
    await session.append(turns(3))
    await notes.append(turns(10))

    class WithNotes:
        session_id = "talk"
        session_settings = None

        def __getattr__(self, name: str) -> Any:
            return getattr(session, name)

        async def get_items(self, limit: int | None = None) -> list[Any]:
            items = await session.get_items(limit)
            await notes.get_items()
            return items

    assert await status_of(session, turn(agent, "hello", WithNotes())) == "applied"  # type: ignore[arg-type]


async def test_by_hand_nothing_counts_as_withheld(
    endpoint: ResponsesEndpoint, session: CasSession, agent: Agent[None]
) -> None:
    """Whoever calls compact means the history: all of it, though the run's response is the newest one."""
    await session.append(turns(3))
    await turn(agent, "hello", session, config=FILTERS["call_model_input_filter"])

    report = await session.compact()

    assert (report.status, report.mode) == ("applied", "input")
    assert len(sent_to_compact(endpoint.compact_requests[0])) == 8


@pytest.mark.parametrize("background", [False, True], ids=["awaited", "in the background"])
async def test_it_is_logged_once_a_run(
    store: SessionStore,
    session: CasSession,
    agent: Agent[None],
    caplog: pytest.LogCaptureFixture,
    background: bool,
) -> None:
    """At info, with the words that say what to do."""
    session._policy = replace(session._policy, background=background)
    await session.append(turns(3))
    with caplog.at_level(logging.INFO, logger="cas_session"):
        await turn(agent, "hello", session, config=FILTERS["call_model_input_filter"])
        await store.aclose()

    [record] = [record for record in caplog.records if record.name == "cas_session"]
    assert record.levelno == logging.INFO
    assert "scope='history'" in record.getMessage()


async def test_overlapping_runs_are_counted_apart(
    endpoint: ResponsesEndpoint, store: SessionStore, client: AsyncOpenAI, agent: Agent[None]
) -> None:
    """What another run on the same object wrote is not missing from this one's model."""
    session = compacting_session(store, client, trigger=when_items(100))
    await session.append(turns(3))
    async with endpoint.hold("responses") as hold:
        runs = [asyncio.create_task(turn(agent, str(number), session)) for number in range(4)]
        for _ in runs:
            await hold.arrived()
        session._policy = CompactionPolicy(trigger=when_items(4), min_savings=0)
        reports: list[str] = []
        session._backend.hook = lambda event: reports.append(event.report.status)  # type: ignore[union-attr]
        hold.release()
        await asyncio.gather(*runs)

    assert "withheld" not in reports
    assert {"applied", "rebased"} & set(reports)


def test_the_scope_is_checked() -> None:
    with pytest.raises(ValueError, match="scope"):
        CompactionPolicy(scope="all")  # type: ignore[arg-type]


async def test_a_runner_that_does_not_tell_is_taken_at_its_word(session: CasSession) -> None:
    """An SDK without these private names: nothing is withheld that anybody knows of."""
    await session.append(turns(3))

    status = await status_of(session, session.run_compaction({"force": True}, wrapper=SimpleNamespace()))

    assert status == "applied"


NAMES = ["call_1", "call_2", None]
KINDS = ["function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "program"]


def items_of_a_history() -> st.SearchStrategy[Item]:
    call = st.fixed_dictionaries(
        {"type": st.sampled_from([*KINDS, "program_output"]), "call_id": st.sampled_from(NAMES[:2])},
        optional={
            "id": st.sampled_from(["fc_1", "fc_2", "__fake_id__"]),
            "caller": st.just({"type": "program", "caller_id": "call_1"}),
        },
    )
    nameless = st.fixed_dictionaries({"type": st.sampled_from(["tool_search_call", "tool_search_output"])})
    thought = st.fixed_dictionaries(
        {"type": st.just("reasoning")}, optional={"id": st.sampled_from(["rs_1", "rs_2", "__fake_id__"])}
    )
    spoken = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": st.just("x")})
    return st.one_of(call, nameless, thought, spoken)


@settings(deadline=None)
@given(st.lists(items_of_a_history(), max_size=12))
def test_no_more_items_are_expected_than_the_runner_sends(items: list[Item]) -> None:
    """Too many would switch compaction off; and as many where nothing is broken."""
    every = set(range(len(items)))
    kept = drop_orphan_function_calls(items, pruning_indexes=every, output_pruning_indexes=every)  # type: ignore[arg-type]
    sent = deduplicate_input_items_preferring_latest(kept)

    expected = count_replayed([outline(item) for item in items])

    assert expected <= len(sent)
    if kept == items:
        assert expected == len(sent)


@settings(deadline=None)
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["type", "role", "id", "call_id", "caller"]),
            st.one_of(
                st.none(),
                st.integers(),
                st.lists(st.integers()),
                st.dictionaries(st.text(), st.none()),
                st.text(),
            ),
        )
    )
)
def test_any_json_can_be_counted(items: list[Item]) -> None:
    assert 0 <= count_replayed(json.loads(json.dumps(items))) <= len(items)
