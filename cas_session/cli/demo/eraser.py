"""The process that clears the second session while another process compacts it."""

from __future__ import annotations

import time

from cas_session.cli.demo.messages import Begin, Clear, Cleared, Fill, Filled, Look, Looked, Stop
from cas_session.cli.demo.process import Line, append
from cas_session.cli.demo.settings import Settings
from cas_session.cli.demo.turns import turn
from cas_session.snapshot import Item
from cas_session.store import SessionStore

TURNS_TO_ERASE = 3


async def play(line: Line, store: SessionStore, settings: Settings, number: int, begin: Begin) -> None:
    """Fill the session, clear it, and look at it, as ordered."""
    session = store.session(settings.erased)
    there: list[Item] = []
    while not isinstance(order := await line.order(), Stop):
        match order:
            case Fill(round_):
                for turns in range(1, TURNS_TO_ERASE + 1):
                    await append(line, session, settings, f"c{round_}", turns)
                line.tell(Filled(round_))
            case Clear(round_, refill):
                version = int(await session.clear())
                at, there = time.monotonic(), []
                if refill:
                    await append(line, session, settings, f"r{round_}", 1)
                    there = turn(settings.seed, f"r{round_}", 1, real=settings.api == "openai")
                line.tell(Cleared(round_, version, at))
            case Look(round_):
                found = (await session.snapshot()).items
                line.tell(
                    Looked(
                        round_,
                        returned=sum(item not in there for item in found),
                        missing=sum(item not in found for item in there),
                    )
                )
