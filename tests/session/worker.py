"""One write by another process: ``python -m tests.session.worker URL SESSION_ID VERB [ITEMS]``."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from cas_session import Item, SessionStore

ROOT = Path(__file__).parents[2]


async def in_other_process(url: str, session_id: str, verb: str, items: list[Item] | None = None) -> None:
    """Let another process write, and wait until it has ended.

    Raises:
        RuntimeError: It failed.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.session.worker",
        url,
        session_id,
        verb,
        json.dumps(items or []),
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate()
    if process.returncode:
        raise RuntimeError(errors.decode())


async def _main(url: str, session_id: str, verb: str, items: str) -> None:
    async with SessionStore(url) as store:
        session = store.session(session_id)
        if verb == "append":
            await session.append(json.loads(items))
        else:
            await getattr(session, verb)()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
