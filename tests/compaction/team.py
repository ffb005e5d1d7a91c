"""Workers in processes of their own that compact one session when they are told to.

``python -m tests.compaction.team URL SESSION_ID BASE_URL LEASE_S``: each line on stdin is one compaction,
each answer on stdout its report's status.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from openai import AsyncOpenAI

from cas_session import CompactionPolicy, SessionStore
from cas_session.compactors import ResponsesCompactor

ROOT = Path(__file__).parents[2]


class Worker:
    """One process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    def begin(self) -> None:
        """Let it compact."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")

    async def status(self) -> str:
        """How its compaction ended."""
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode().strip()

    async def kill(self) -> None:
        self._process.kill()
        await self._process.wait()


@contextlib.asynccontextmanager
async def team(
    size: int, url: str, session_id: str, base_url: str, *, lease_s: float = 330
) -> AsyncIterator[list[Worker]]:
    """So many workers, each with its store open; they end with the block."""
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "tests.compaction.team", url, session_id, base_url, str(lease_s)),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for _ in range(size)
    ]
    workers = [Worker(process) for process in processes]
    try:
        for worker in workers:
            assert await worker.status() == "ready"
        yield workers
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _main(url: str, session_id: str, base_url: str, lease_s: str) -> None:
    lease = float(lease_s)
    policy = CompactionPolicy(lease_s=lease, deadline_s=lease * 0.9, failure_cooldown_s=0)
    client = AsyncOpenAI(base_url=base_url, api_key="test", max_retries=0)
    compactor = ResponsesCompactor(model="gpt-5.1", client=client)
    async with SessionStore(url, pool_size=2) as store, client:
        session = store.session(session_id, compactor=compactor, policy=policy)
        await session.version()
        print("ready", flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            report = await session.compact()
            print(report.status, flush=True)


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
