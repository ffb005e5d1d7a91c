"""Another process with the real runner.

``python -m tests.agents.worker talk DATABASE_URL MODEL_URL NAME TURNS`` takes turns in the session ``talk``;
``... resume DATABASE_URL MODEL_URL`` resumes the run whose state comes on standard input, all approved.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from agents import RunState, set_tracing_disabled
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from cas_session import SessionStore
from cas_session.compaction.policy import when_items
from tests.agents.runs import compacting_session, new_agent, turn

ROOT = Path(__file__).parents[2]


async def in_other_process(*arguments: object, given: str = "") -> str:
    """Run a worker to its end and return what it printed.

    Raises:
        RuntimeError: It failed.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.agents.worker",
        *map(str, arguments),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate(given.encode())
    if process.returncode:
        raise RuntimeError(errors.decode())
    return output.decode().strip()


async def _talk(store: SessionStore, client: AsyncOpenAI, name: str, turns: str) -> None:
    """Every second turn streamed, every third with two parallel tools; the mode alternates with the turns."""
    agent = new_agent(client)
    for number in range(int(turns)):
        session = compacting_session(
            store, client, mode=("auto", "input")[number % 2], trigger=when_items(12), min_savings=0
        )
        sums = f" 1+{number}" if number % 3 == 0 else ""
        await turn(agent, f"{name} {number}{sums}", session, streamed=number % 2 == 0)


async def _resume(store: SessionStore, client: AsyncOpenAI) -> None:
    agent = new_agent(client)
    state = await RunState.from_string(agent, sys.stdin.read())
    for asked in state.get_interruptions():
        state.approve(asked)
    print((await turn(agent, state, compacting_session(store, client))).final_output)


async def _main(verb: str, database_url: str, model_url: str, *rest: str) -> None:
    set_tracing_disabled(True)
    async with (
        SessionStore(database_url) as store,
        AsyncOpenAI(
            base_url=model_url,
            api_key="test",
            max_retries=0,
            http_client=DefaultAsyncHttpxClient(trust_env=False),
        ) as client,
    ):
        await {"talk": _talk, "resume": _resume}[verb](store, client, *rest)


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
