"""A network of some length: a loopback port in front of a Postgres server, in a process of its own."""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

from sqlalchemy import make_url


@contextlib.contextmanager
def distant(url: str, round_trip_s: float) -> Iterator[str]:
    """The same database, so far away."""
    target = make_url(url)
    host = str(target.query.get("host") or target.host or "localhost")
    mine, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_serve, args=(theirs, host, target.port or 5432, round_trip_s / 2), daemon=True
    )
    process.start()
    theirs.close()
    try:
        port = mine.recv()
        through = target.set(host="127.0.0.1", port=port, query={})
        yield through.render_as_string(hide_password=False)
    finally:
        process.terminate()
        process.join()


def _serve(parent: Connection, host: str, port: int, delay_s: float) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    parent.send(listener.getsockname()[1])
    while True:
        client, _ = listener.accept()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if host.startswith("/"):
            server = socket.socket(socket.AF_UNIX)
            server.connect(f"{host}/.s.PGSQL.{port}")
        else:
            server = socket.create_connection((host, port))
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for source, sink in ((client, server), (server, client)):
            threading.Thread(target=_pump, args=(source, sink, delay_s), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket, delay_s: float) -> None:
    """Hand on what comes, later. In a thread, for an event loop's clock has whole milliseconds."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 18):
            time.sleep(delay_s)
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
