"""One conversation, several workers, and a model that answers when the test says so."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from openai import AsyncOpenAI

from cas_session import CasSession, CompactionPolicy, CompactionReport, Item, SessionStore
from cas_session.compactors import ResponsesCompactor
from cas_session.driver import Chain
from cas_session.testing.endpoint import LoggedRequest, ResponsesEndpoint
from tests.session.stores import row_of
from tests.session.worker import in_other_process

MODEL = "gpt-5.1"
SESSION = "s"
Place = Literal["the same object", "another object", "another store", "another process"]
PLACES: tuple[Place, ...] = ("the same object", "another object", "another store", "another process")


@dataclass(frozen=True)
class Scene:
    """A database with two workers' stores, and the endpoint that compacts."""

    url: str
    store: SessionStore
    other: SessionStore
    endpoint: ResponsesEndpoint
    client: AsyncOpenAI

    def session(
        self,
        policy: CompactionPolicy | None = None,
        *,
        store: SessionStore | None = None,
        mode: Literal["auto", "input", "previous_response_id"] = "auto",
    ) -> CasSession:
        """A session that compacts through the endpoint."""
        compactor = ResponsesCompactor(model=MODEL, client=self.client, mode=mode)
        return (store or self.store).session(SESSION, compactor=compactor, policy=policy)

    @property
    def foreign(self) -> CasSession:
        """The session as another worker has it."""
        return self.other.session(SESSION)

    async def write(
        self, place: Place, session: CasSession, verb: str, items: list[Item] | None = None
    ) -> None:
        """Append, pop, clear or delete from somewhere."""
        if place == "another process":
            await in_other_process(self.url, SESSION, verb, items)
            return
        writer = {
            "the same object": session,
            "another object": self.store.session(SESSION),
            "another store": self.foreign,
        }[place]
        await (writer.append(items) if items is not None else getattr(writer, verb)())

    @contextlib.asynccontextmanager
    async def during(self, compaction: Awaitable[Any]) -> AsyncIterator[asyncio.Future[Any]]:
        """The block runs while the model is asked; afterwards it answers, and the compaction has ended."""
        async with self.endpoint.hold("compact") as hold:
            task = asyncio.ensure_future(compaction)
            await hold.arrived()
            yield task
            hold.release()
            await asyncio.wait([task])

    async def compact_while(
        self, session: CasSession, happens: Callable[[], Awaitable[Any]], **how: Any
    ) -> CompactionReport:
        """Let something happen while the model is asked."""
        async with self.during(session.compact(**how)) as compaction:
            await happens()
        return await compaction  # type: ignore[no-any-return]

    @property
    def requests(self) -> list[LoggedRequest]:
        """What the model was asked to compact."""
        return self.endpoint.compact_requests

    @property
    def modes(self) -> list[str]:
        """How each request named the history; never in both ways."""
        bodies = [request.body or {} for request in self.requests]
        assert all(("input" in body) != ("previous_response_id" in body) for body in bodies)
        return ["input" if "input" in body else "previous_response_id" for body in bodies]

    def stands_for(self, items: Sequence[Item]) -> list[Item]:
        """Everything that a compacted history covers, and what stands behind it."""
        folds = [at for at, item in enumerate(items) if item.get("type") == "compaction"]
        if not folds:
            return list(items)
        return [*self.endpoint.unseal(items[folds[-1]]["encrypted_content"]), *items[folds[-1] + 1 :]]

    async def respond(self, session: CasSession, text: str, **options: Any) -> str:
        """One turn by hand: the question and the model's answer are appended; gives the response's id."""
        question = {"role": "user", "content": text}
        response = await self.client.responses.create(model=MODEL, input=[question], **options)  # type: ignore[list-item]
        await session.append([question, *(item.model_dump(exclude_unset=True) for item in response.output)])
        return str(response.id)

    async def respond_without_storing(self, text: str) -> str:
        """The model's answer to a text, of which nothing is appended; gives the response's id."""
        return str((await self.client.responses.create(model=MODEL, input=text)).id)

    async def chain(self) -> Chain:
        """The chain columns, as the database has them."""
        return (await row_of(self.store, SESSION)).chain

    async def kinds(self) -> list[str]:
        """The kinds of the writes that landed, oldest first."""
        return [row.kind for row in reversed(await self.store.session(SESSION).operations())]
