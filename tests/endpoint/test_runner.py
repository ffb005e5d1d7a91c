"""The runner of openai-agents, as it is, goes through whole turns on the endpoint."""

import pytest
from agents import Agent, RunConfig, Runner, function_tool
from agents.models.openai_responses import OpenAIResponsesModel
from openai import AsyncOpenAI

from cas_session.testing.endpoint import Reply, ResponsesEndpoint

QUIET = RunConfig(tracing_disabled=True)


@function_tool
def add(a: int, b: int) -> int:
    return a + b


@pytest.fixture
def agent(client: AsyncOpenAI) -> Agent[None]:
    model = OpenAIResponsesModel(model="gpt-5.1", openai_client=client)
    return Agent(name="Counter", instructions="Count.", model=model, tools=[add])


def tool_turn() -> list[Reply]:
    return [
        Reply.calls(("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4}), reasoning="Two sums."),
        Reply.text("3 and 7", reasoning="Both are there."),
    ]


async def test_a_run_goes_through_a_tool_turn(endpoint: ResponsesEndpoint, agent: Agent[None]) -> None:
    """Its history is valid input for the next run."""
    endpoint.reply_with(*tool_turn())

    run = await Runner.run(agent, "1+2, 3+4", run_config=QUIET)
    following = [*run.to_input_list(), {"role": "user", "content": "thanks"}]
    later = await Runner.run(agent, following, run_config=QUIET)  # type: ignore[arg-type]

    assert run.final_output == "3 and 7"
    assert later.final_output == "You said: thanks"
    assert run.context_wrapper.usage.requests == 2
    assert run.context_wrapper.usage.total_tokens > 0


async def test_a_streamed_run_goes_through_a_tool_turn(
    endpoint: ResponsesEndpoint, agent: Agent[None]
) -> None:
    """The same over server-sent events."""
    endpoint.reply_with(*tool_turn())

    run = Runner.run_streamed(agent, "1+2, 3+4", run_config=QUIET)
    deltas = [
        event.data.delta
        async for event in run.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]

    assert run.final_output == "3 and 7"
    assert "".join(deltas) == "3 and 7"


async def test_a_run_continues_a_chain(endpoint: ResponsesEndpoint, agent: Agent[None]) -> None:
    """With previous_response_id the tool outputs alone are sent."""
    endpoint.reply_with(*tool_turn())

    run = await Runner.run(agent, "1+2, 3+4", run_config=QUIET, auto_previous_response_id=True)

    assert run.final_output == "3 and 7"
    kinds = [item["type"] for item in (endpoint.requests[1].body or {})["input"]]
    assert kinds == ["function_call_output", "function_call_output"]


async def test_the_history_of_a_run_can_be_compacted(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI, agent: Agent[None]
) -> None:
    """And every item of it is covered."""
    endpoint.reply_with(*tool_turn())
    run = await Runner.run(agent, "1+2, 3+4", run_config=QUIET)

    compacted = await client.responses.compact(model="gpt-5.1", input=run.to_input_list())

    covered = endpoint.unseal(compacted.output[-1].encrypted_content)  # type: ignore[union-attr,arg-type]
    assert run.to_input_list() == covered
