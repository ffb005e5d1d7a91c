"""Agents on the endpoint, sessions that are compacted through it, and turns of the real runner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agents import Agent, RunConfig, Runner, Session, function_tool
from agents.models.openai_responses import OpenAIResponsesModel
from agents.result import RunResultBase
from openai import AsyncOpenAI

from cas_session import CasSession, CompactionPolicy, Item, SessionStore
from cas_session.compaction.policy import when_items
from cas_session.compactors import ResponsesCompactor
from cas_session.testing.endpoint import LoggedRequest, ResponsesEndpoint

QUIET = RunConfig(tracing_disabled=True)
MODEL = "gpt-5.1"


@function_tool
def add(a: int, b: int) -> int:
    return a + b


@function_tool(needs_approval=True)
def pay(amount: int) -> str:
    return f"paid {amount}"


@function_tool(failure_error_function=None)
def explode() -> str:
    raise RuntimeError("boom")


def model(client: AsyncOpenAI) -> OpenAIResponsesModel:
    return OpenAIResponsesModel(model=MODEL, openai_client=client)


def new_agent(client: AsyncOpenAI, **options: Any) -> Agent[None]:
    """An agent that can count, pay after an approval, and fail."""
    options = {"name": "Counter", "instructions": "Count.", "tools": [add, pay, explode], **options}
    return Agent(model=model(client), **options)


def compacting_session(
    store: SessionStore,
    client: AsyncOpenAI,
    session_id: str = "talk",
    *,
    mode: Any = "auto",
    **policy: Any,
) -> CasSession:
    """By default it is compacted as soon as it has four items, whatever that saves."""
    policy = {"trigger": when_items(4), "min_savings": 0, **policy}
    return store.session(
        session_id,
        compactor=ResponsesCompactor(model=MODEL, client=client, mode=mode),
        policy=CompactionPolicy(**policy),
    )


async def turn(
    agent: Agent[None],
    said: Any,
    session: Session | None,
    *,
    streamed: bool = False,
    config: RunConfig = QUIET,
    **options: Any,
) -> RunResultBase:
    """One run to its end; a streamed one with all its events taken."""
    if not streamed:
        return await Runner.run(agent, said, session=session, run_config=config, **options)
    result = Runner.run_streamed(agent, said, session=session, run_config=config, **options)
    async for _ in result.stream_events():
        pass
    return result


def kinds(items: Sequence[Any]) -> list[str]:
    """Type of each item; of a message its role."""
    return [str(item.get("role") or item["type"]) for item in items]


def said_by_user(items: Sequence[Any]) -> list[str]:
    """The texts of the user messages, as sent or as a compaction returns them."""
    return [
        content if isinstance(content := item["content"], str) else "".join(part["text"] for part in content)
        for item in items
        if item.get("role") == "user"
    ]


def refused(endpoint: ResponsesEndpoint) -> list[LoggedRequest]:
    """The requests that the strict endpoint did not accept."""
    return [request for request in endpoint.requests if request.status is None or request.status >= 400]


def sent_to_compact(request: LoggedRequest) -> list[Item]:
    """The items of a request for a compaction; [] if it named a response instead."""
    assert request.body is not None
    return list(request.body.get("input") or [])
