"""A process that appends whole turns to the shared session, and checks what it reads there."""

from __future__ import annotations

import random
from itertools import count

from cas_session.cli.demo.messages import Begin, WasRead
from cas_session.cli.demo.process import Line, append
from cas_session.cli.demo.settings import Settings
from cas_session.session import CasSession
from cas_session.snapshot import Item
from cas_session.store import SessionStore
from cas_session.testing.strict import InvalidRequestError, check_items, check_links, item_type

READ_EVERY = 5  # turns


async def play(line: Line, store: SessionStore, settings: Settings, number: int, begin: Begin) -> None:
    """Append until all turns are in, or the run is over."""
    author = f"w{number}"
    dice = random.Random(f"{settings.seed}/{author}/pauses")
    share = settings.share_of(number)
    session, reader = store.session(settings.shared), Reader(store.session(settings.shared), begin.first)
    for turns in count(1):
        if line.stopped.is_set() or (share is not None and turns > share):
            return
        version = await append(line, session, settings, author, turns)
        reader.newest = max(reader.newest, version)
        if turns % READ_EVERY == 0:
            line.tell(await reader.read())
        await line.pause(dice.uniform(0, 2 * settings.pause_s))


class Reader:
    """Reads a session as an agent does before it asks its model, and checks what it gets.

    Args:
        session: What is read.
        first: The item that the history begins with until a compaction replaces it.

    Attributes:
        newest: The highest version that this process has seen, written or read.
    """

    def __init__(self, session: CasSession, first: Item) -> None:
        self.newest = 0
        self._session = session
        self._first = first

    async def read(self) -> WasRead:
        """Read once, and say what is wrong with the history, if anything."""
        snapshot = await self._session.snapshot()
        version, items = int(snapshot.version), snapshot.items
        seen, self.newest = self.newest, max(self.newest, version)
        if version < seen:
            return WasRead(version, "stale", f"version {version} after version {seen} was seen")
        if items[:1] != [self._first] and not any(item_type(item) == "compaction" for item in items):
            return WasRead(version, "torn", f"version {version}: the beginning of the conversation is gone")
        try:
            check_items(items)
            check_links(items, {})
        except InvalidRequestError as error:
            return WasRead(version, "invalid", f"version {version}: {error}")
        return WasRead(version)
