"""The real runner in several processes on one conversation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agents import Agent
from openai import AsyncOpenAI

from cas_session import SessionStore
from cas_session.testing.endpoint import Reply, ResponsesEndpoint
from cas_session.testing.strict import check_links
from tests.agents.runs import compacting_session, kinds, new_agent, refused, said_by_user, turn
from tests.agents.worker import in_other_process
from tests.session.items import turns

TURNS = 25  # of each worker


class Counting(ResponsesEndpoint):
    """A model that calls ``add`` twice for a user message with a sum in it."""

    def _respond(self, body: dict[str, Any]) -> dict[str, Any]:
        last = body["input"][-1]
        if last.get("role") == "user" and "+" in str(last["content"]):
            calls = [("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4})]
            self.reply_with(Reply.calls(*calls, reasoning="Two sums."))
        try:
            return super()._respond(body)
        finally:
            self._replies.clear()


@pytest.mark.slow
async def test_two_processes_talk_in_one_conversation_while_it_is_compacted(
    database_url: str, store: SessionStore
) -> None:
    """50 turns, streamed and plain, with parallel tools.

    Every request is accepted, no user message is lost, and no version of the history has an orphan output or
    more than one compaction item.
    """
    async with Counting() as endpoint:
        await asyncio.gather(
            *(in_other_process("talk", database_url, endpoint.base_url, name, TURNS) for name in ("a", "b"))
        )
        session = store.session("talk")
        last = await session.snapshot()
        everything = [item for entry in last.items for item in covered(endpoint, entry)]
        asked = [
            f"{name} {number}" + (f" 1+{number}" if number % 3 == 0 else "")
            for name in ("a", "b")
            for number in range(TURNS)
        ]

        assert [(request.status, request.path) for request in refused(endpoint)] == []
        assert set(asked) == set(said_by_user(everything))
        assert sorted(asked) == sorted(said_by_user(last.items))
        for version in range(1, last.version + 1):
            items = (await session.snapshot(version=version)).items
            assert kinds(items).count("compaction") <= 1
            check_links(items, endpoint._made_with)
        landed = [
            run.decision for run in await session.compactions() if run.decision in ("applied", "rebased")
        ]
        assert len(landed) >= 5


def covered(endpoint: ResponsesEndpoint, item: dict[str, Any]) -> list[dict[str, Any]]:
    return endpoint.unseal(item["encrypted_content"]) if item.get("type") == "compaction" else [item]


@pytest.mark.parametrize("compacted", [False, True], ids=["as it was", "compacted meanwhile"])
async def test_a_run_is_resumed_in_another_process(
    database_url: str,
    endpoint: ResponsesEndpoint,
    store: SessionStore,
    client: AsyncOpenAI,
    agent: Agent[None],
    compacted: bool,
) -> None:
    """Also when a compaction folded what stood before its open call."""
    session = compacting_session(store, client)
    await store.session("talk").append(turns(3))
    endpoint.reply_with(Reply.calls(("pay", {"amount": 5})), Reply.text("paid"))
    asked: Any = await turn(new_agent(client), "pay 5", session if compacted else store.session("talk"))
    before = kinds(await session.get_items())

    output = await in_other_process(
        "resume", database_url, endpoint.base_url, given=asked.to_state().to_string()
    )
    await turn(agent, "thanks", session)

    assert output == "paid"
    assert before[-1] == "function_call"
    assert ("compaction" in before) == compacted
    assert said_by_user(await session.get_items()) == [
        *[f"question {number}" for number in range(3)],
        *["pay 5", "thanks"],
    ]
    assert refused(endpoint) == []
