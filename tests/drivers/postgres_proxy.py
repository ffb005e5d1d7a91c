"""A proxy in front of a Postgres server that counts round trips, loses answers and cuts connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Self

from sqlalchemy import make_url

READY = b"Z"


class Proxy:
    """A loopback port in front of the server of ``url``.

    Attributes:
        url: The same database through the proxy, without TLS.
        round_trips: ReadyForQuery messages that came back so far: each ended a wait of the client.
        answered: Set when an answer was held back or lost: the server is through with the statement.
        flowing: While it is not set, answers are held back.
    """

    def __init__(self, url: str) -> None:
        target = make_url(url)
        host = target.query.get("host") or target.host or "localhost"
        self._host, self._port = str(host), target.port or 5432
        self._target = target
        self._server: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self.url = ""
        self.round_trips = 0
        self.loses_answers = False
        self.holds_requests = False
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.answered = asyncio.Event()
        self.requested = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        bare = self._target.set(drivername="postgresql", host="127.0.0.1", port=port, query={})
        self.url = bare.render_as_string(hide_password=False) + "?sslmode=disable"
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """Cut every connection on both sides, at once."""
        for link in list(self._links):
            link.cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._host.startswith("/"):
            up = await asyncio.open_unix_connection(f"{self._host}/.s.PGSQL.{self._port}")
        else:
            up = await asyncio.open_connection(self._host, self._port)
        link = _Link(self, (reader, writer), up)
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)
            link.cut()


class _Link:
    """One connection through the proxy."""

    def __init__(
        self,
        proxy: Proxy,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server

    async def run(self) -> None:
        pumps = [asyncio.create_task(self._requests()), asyncio.create_task(self._answers())]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    def cut(self) -> None:
        for _, writer in (self._client, self._server):
            writer.transport.abort()

    async def _requests(self) -> None:
        """Bytes to the server, as they are; with ``holds_requests`` they stay here."""
        while data := await self._client[0].read(1 << 16):
            self._proxy.requested.set()
            if not self._proxy.holds_requests:
                self._server[1].write(data)

    async def _answers(self) -> None:
        async for message in _messages(self._server[0]):
            if message[:1] == READY:
                self._proxy.round_trips += 1
                if self._proxy.loses_answers:
                    self._proxy.answered.set()
            if not self._proxy.flowing.is_set():
                self._proxy.answered.set()
                await self._proxy.flowing.wait()
            if not self._proxy.loses_answers:
                self._client[1].write(message)


async def _messages(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The server's messages: a type, and a length that counts itself."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = await reader.readexactly(5)
            yield head + await reader.readexactly(int.from_bytes(head[1:], "big") - 4)
