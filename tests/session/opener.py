"""Four openers of one database in a process: ``python -m tests.session.opener URL CANCELLED``.

It opens when a line comes on stdin, and ends with status 0 if every opener but the cancelled one could write.
"""

from __future__ import annotations

import asyncio
import sys

from cas_session import SessionStore

OPENERS = 4


async def _open_and_write(url: str, name: str) -> None:
    async with SessionStore(url, migrate=True, pool_size=1, maintenance_interval_s=None) as store:
        await store.session(name).append([{"from": name}])


async def _main(url: str, name: str, cancelled: str) -> None:
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    openers = [asyncio.create_task(_open_and_write(url, f"{name}-{n}")) for n in range(OPENERS)]
    if cancelled == "yes":
        await asyncio.sleep(0.01)
        openers[0].cancel()
    ends = await asyncio.gather(*openers, return_exceptions=True)
    failures = [end for end in ends if isinstance(end, Exception)]
    if failures:
        raise ExceptionGroup(name, failures)


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
