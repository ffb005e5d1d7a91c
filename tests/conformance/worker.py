"""A process that appends to a session as fast as it can: ``python -m tests.conformance.worker URL ID COUNT``.

It says ``ready``, waits for a line, writes, and prints each version and its block as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from tests.conformance.database import Database
from tests.conformance.writes import append, until_landed


async def main(url: str, session_id: str, count: int) -> None:
    async with Database(url).opened() as driver:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        for turn in range(count):
            block = [f"{os.getpid()}.{turn}.{at}" for at in range(3)]
            landed = await until_landed(driver, append(session_id, *block))
            print(json.dumps([int(landed.manifest.version), block]), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
