"""Processes that append as fast as it goes, each through a store of its own, and say what they did."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Self

from benchmarks.items import Conversation
from benchmarks.stores import Store

TASKS = 8  # in each process
WARM_UP = 6  # appends of each task before: Postgres decides on the plan of a statement at its sixth time


@dataclass(frozen=True, slots=True)
class Order:
    """Append to these sessions for so long. ``run`` makes the tags unique."""

    kind: type[Store]
    url: str
    sessions: Sequence[str]
    seconds: float
    run: str


@dataclass(slots=True)
class Outcome:
    """What one process did: acknowledged appends as (session, tag), and how many calls raised."""

    acknowledged: list[tuple[str, str]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    failed: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0


class Writers:
    """The processes, started when they are first needed."""

    def __init__(self) -> None:
        self._started: list[tuple[SpawnProcess, Connection]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for _, pipe in self._started:
            pipe.send(None)
        for process, _ in self._started:
            process.join()

    def run(self, count: int, order: Order) -> list[Outcome]:
        """Let so many of them carry out the order at the same time."""
        while len(self._started) < count:
            self._start()
        pipes = [pipe for _, pipe in self._started[:count]]
        for pipe in pipes:
            pipe.send(order)
        for pipe in pipes:
            pipe.recv()  # it is ready
        for pipe in pipes:
            pipe.send("go")
        return [pipe.recv() for pipe in pipes]

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        mine, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, len(self._started)), daemon=True)
        process.start()
        theirs.close()  # so that an end of the process is an error here, and no wait for ever
        self._started.append((process, mine))


def _work(parent: Connection, number: int) -> None:
    talk = Conversation(number)
    while (order := parent.recv()) is not None:
        parent.send(asyncio.run(_carry_out(order, parent, talk, number)))


async def _carry_out(order: Order, parent: Connection, talk: Conversation, process: int) -> Outcome:
    store, outcome = order.kind(order.url), Outcome()
    await store.open()
    await asyncio.gather(*(_warm_up(store, talk, f"{order.run}.{process}.{task}") for task in range(TASKS)))
    parent.send("ready")
    parent.recv()
    began, cpu_began = time.perf_counter(), time.process_time()
    end = began + order.seconds
    await asyncio.gather(
        *(_append_until(end, store, order, talk, f"{process}.{task}", outcome) for task in range(TASKS))
    )
    outcome.wall_s, outcome.cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    await store.close()
    return outcome


async def _warm_up(store: Store, talk: Conversation, session_id: str) -> None:
    """Open a connection and have its statements prepared, on a session that nobody else writes."""
    session = store.session(session_id)
    for _ in range(WARM_UP):
        await session.append(talk.turn(session_id))
    await session.close()


async def _append_until(
    end: float, store: Store, order: Order, talk: Conversation, writer: str, outcome: Outcome
) -> None:
    """One task. Of one session it keeps the object; of many it makes one for each call, as requests do."""
    dice = random.Random(f"{order.run}.{writer}")
    kept = store.session(order.sessions[0]) if len(order.sessions) == 1 else None
    number = 0
    while time.perf_counter() < end:
        session_id, tag = dice.choice(order.sessions), f"{order.run}.{writer}.{number}"
        items = talk.turn(tag)
        number += 1
        began = time.perf_counter()
        session = kept if kept is not None else store.session(session_id)
        try:
            await session.append(items)
            outcome.acknowledged.append((session_id, tag))
        except Exception:  # noqa: BLE001  # whatever a store raises is its result
            outcome.failed += 1
        if kept is None:
            await session.close()
        outcome.seconds.append(time.perf_counter() - began)
    if kept is not None:
        await kept.close()
