"""What is compared: a store as an agent server uses it, and cas_session as one of them."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable
from itertools import islice
from typing import Any, ClassVar

from benchmarks.items import Turn
from cas_session import SessionStore, codec
from cas_session.driver import Load, Manifest, Prefix, Replace
from cas_session.snapshot import Item
from cas_session.writes import digest, new_nonce, new_op_id

FILLED_TOGETHER = 64  # turns: what the store sends as one statement


class Session(ABC):
    """One conversation, as a request of an application gets it."""

    @abstractmethod
    async def append(self, items: list[Item]) -> None: ...

    @abstractmethod
    async def read(self, limit: int | None = None) -> list[Any]:
        """The newest ``limit`` items or all, oldest first, as objects that the caller may change."""

    async def look(self) -> list[Any]:
        """All items, for a caller that changes none of them."""
        return await self.read()

    def forget(self) -> None:  # noqa: B027  # most remember nothing
        """Drop what this process remembers of the session, so that the next read is its first."""

    @abstractmethod
    async def pop(self) -> None: ...

    @abstractmethod
    async def clear(self) -> None: ...

    async def mark(self) -> Any:
        """What a replace and a compaction were made from; read before, so not in their time."""
        return None

    @abstractmethod
    async def replace(self, items: list[Item], mark: Any) -> None:
        """Replace the whole history."""

    async def compact(self, items: list[Item], mark: Any) -> None:
        """The write of a compaction of everything there was; the model's answer is ``items``."""
        await self.replace(items, mark)

    async def close(self) -> None:  # noqa: B027  # most hold nothing
        """Give back what the object holds by itself."""


class Store(ABC):
    """Conversations in one database, opened once a process."""

    name: ClassVar[str]

    def __init__(self, url: str) -> None:
        self.url = url

    @abstractmethod
    async def open(self, *, create: bool = False) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...

    async def settle(self) -> None:  # noqa: B027  # most leave nothing behind
        """Wait for what the last call goes on with after it returned."""

    @abstractmethod
    def session(self, session_id: str) -> Session:
        """What an application pays for a session object."""

    @abstractmethod
    async def fill(self, sessions: Iterable[tuple[str, list[Turn]]]) -> None:
        """Store whole histories of new sessions, as if each turn had been appended; not timed."""

    @abstractmethod
    async def newest(self, limit: int) -> object:
        """A page of sessions, newest first."""


class CasSession(Session):
    def __init__(self, store: SessionStore, session_id: str) -> None:
        self._store = store
        self._session = store.session(session_id)

    async def append(self, items: list[Item]) -> None:
        await self._session.append(items)

    async def read(self, limit: int | None = None) -> list[Any]:
        return (await self._session.snapshot(limit=limit)).items

    async def look(self) -> list[Any]:
        return (await self._session.snapshot(shared=True)).items

    def forget(self) -> None:
        self._store.backend.cache.drop(self._session.session_id)

    async def pop(self) -> None:
        await self._session.pop()

    async def clear(self) -> None:
        await self._session.clear()

    async def mark(self) -> Manifest:
        return (await self._store.backend.load(Load(self._session.session_id, 0))).manifest

    async def replace(self, items: list[Item], mark: Manifest) -> None:
        await self._session.replace(items, expected_version=mark.version)

    async def compact(self, items: list[Item], mark: Manifest) -> None:
        """The write that lands a compaction, as `cas_session.compaction.engine` sends it."""
        encoded, op_id = codec.encode(items), new_op_id()
        write = Replace(
            session_id=self._session.session_id,
            op_id=op_id,
            nonce=new_nonce(),
            digest=digest("compact", op_id, encoded.texts),
            texts=encoded.texts,
            sizes=encoded.sizes,
            prefix=Prefix(mark.next_seq - 1, mark.version, mark.epoch, mark.item_count, mark.byte_count),
        )
        await self._store.backend.write("compact", write, lambda driver, sending: driver.replace(sending))


class CasSessionStore(Store):
    """cas_session as it comes, but without the background task that prunes."""

    name = "cas-session"

    async def open(self, *, create: bool = False) -> None:
        self.store = SessionStore(self.url, migrate=create or None, maintenance_interval_s=None)
        await self.store.open()

    async def close(self) -> None:
        await self.store.aclose()

    async def settle(self) -> None:
        """A clear removes the rows that it hid after it returned."""
        if tasks := self.store.backend._tasks:
            await asyncio.wait(tasks)

    def session(self, session_id: str) -> CasSession:
        return CasSession(self.store, session_id)

    async def fill(self, sessions: Iterable[tuple[str, list[Turn]]]) -> None:
        rest = iter(sessions)
        while some := list(islice(rest, 4)):
            await asyncio.gather(*(self._fill_one(session_id, turns) for session_id, turns in some))

    async def _fill_one(self, session_id: str, turns: list[Turn]) -> None:
        session = self.store.session(session_id)
        for start in range(0, len(turns), FILLED_TOGETHER):
            some = turns[start : start + FILLED_TOGETHER]
            await asyncio.gather(*(session.append(turn.items) for turn in some))

    async def newest(self, limit: int) -> object:
        return await self.store.list_sessions(limit=limit)
