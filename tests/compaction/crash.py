"""A worker that is killed beside the replace of its compaction: ``python -m tests.compaction.crash ...``."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from cas_session import SessionStore
from cas_session.compactors import ResponsesCompactor
from cas_session.driver import Landed, Replace

ROOT = Path(__file__).parents[2]


async def crash(url: str, session_id: str, base_url: str, when: str) -> None:
    """Let a process compact and be killed ``before the replace`` or ``after the replace``."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.compaction.crash", url, session_id, base_url, when, cwd=ROOT
    )
    assert await process.wait() == -signal.SIGKILL


async def _main(url: str, session_id: str, base_url: str, when: str) -> None:
    async with (
        SessionStore(url) as store,
        AsyncOpenAI(base_url=base_url, api_key="test", max_retries=0) as client,
    ):
        driver: Any = store.backend.driver
        replace = driver.replace

        async def killed(write: Replace) -> Landed:
            if when == "after the replace":
                await replace(write)
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError

        driver.replace = killed
        await store.session(session_id, compactor=ResponsesCompactor(model="m", client=client)).compact()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
