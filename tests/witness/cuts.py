"""A proxy in front of a Postgres server that cuts connections at random, at the moments that matter."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from typing import Literal, Self

from sqlalchemy import make_url

CHUNK = 1 << 16

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Moment = Literal[
    "before the request", "in the request", "behind the request", "before the answer", "in the answer"
]

# Behind the request: the server has it, and works on it or not, with nobody to answer to.
OF_REQUESTS: tuple[Moment, ...] = ("before the request", "in the request", "behind the request")
OF_ANSWERS: tuple[Moment, ...] = ("before the answer", "in the answer")


class CuttingProxy:
    """A loopback port in front of the server of ``url``. It passes on bytes, and cuts at what it is told.

    Args:
        url: Of a database, on a Unix socket or a port.
        seed: Of the cuts.

    Attributes:
        url: The same database through the proxy, without TLS.
        rate: The part of the messages at which the connection is cut.
        cuts: How many cuts there were, by moment.
    """

    def __init__(self, url: str, seed: int) -> None:
        target = make_url(url)
        self._target = target
        self._host, self._port = str(target.query.get("host") or target.host), target.port or 5432
        self._random = random.Random(seed)
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self.url = ""
        self.rate = 0.0
        self.cuts: Counter[Moment] = Counter()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        bare = self._target.set(drivername="postgresql", host="127.0.0.1", port=port, query={})
        self.url = bare.render_as_string(hide_password=False) + "?sslmode=disable"
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve((reader, writer)))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, client: Streams) -> None:
        server: Streams | None = None
        try:
            server = await self._connect()
            pumps = [
                asyncio.create_task(self._pump(client[0], server[1], OF_REQUESTS)),
                asyncio.create_task(self._pump(server[0], client[1], OF_ANSWERS)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:
            pass  # the server is down; the client sees that its connection ends
        finally:
            for _, writer in (client, *([server] if server else [])):
                writer.transport.abort()

    async def _connect(self) -> Streams:
        if self._host.startswith("/"):
            return await asyncio.open_unix_connection(f"{self._host}/.s.PGSQL.{self._port}")
        return await asyncio.open_connection(self._host, self._port)

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, moments: tuple[Moment, ...]
    ) -> None:
        """Pass on what comes until it ends or is cut."""
        with contextlib.suppress(ConnectionError):
            while data := await source.read(CHUNK):
                moment = self._cut(moments)
                if moment is None or moment == "behind the request":
                    sink.write(data)
                elif moment.startswith("in"):
                    sink.write(data[: self._random.randrange(len(data))])
                if moment is not None:
                    return
                await sink.drain()

    def _cut(self, moments: tuple[Moment, ...]) -> Moment | None:
        if self._random.random() >= self.rate:
            return None
        moment = self._random.choice(moments)
        self.cuts[moment] += 1
        return moment
