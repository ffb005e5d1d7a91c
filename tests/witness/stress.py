"""Several processes on one database that is disturbed, and what was seen of it as a history."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path

import asyncpg

from cas_session import SessionStore
from cas_session.driver import Load
from cas_session.drivers.settle import settle
from tests.conformance.database import Database
from tests.witness.checker import check
from tests.witness.history import Call, Final, History, Mark, Op, recorded, tokens_of
from tests.witness.worker import Sessions, Settings

ROOT = Path(__file__).parents[2]
GIVE_UP_S = 900.0  # of a run that makes no calls; a free machine needs a tenth of it
OPS_READ = 1000  # at a time
RETAIN_S = {0: 0.0, 1: 0.1}  # of the processes that prune: at once, or with something left to restore
SESSIONS: Sessions = ("hot", "warm", "mild")

BUSY = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""
TERMINATE_ONE = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
ORDER BY random() LIMIT 1
"""


@dataclass
class Figures:
    """What a run did, for people."""

    seed: int
    seconds: float = 0.0
    calls: int = 0
    disturbances: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        many = [f"{number} {name}" for name, number in (*self.disturbances.items(), *self.outcomes.items())]
        return f"seed {self.seed}: {self.calls} calls in {self.seconds:.1f} s; {', '.join(many)}"


class Workers:
    """Processes that call at random.

    Args:
        url: The database as they see it.
        folder: For their logs.
        seed: Of their choices.
        count: How many.
        patience_s, mutant: As in `Settings`.
    """

    def __init__(
        self,
        url: str,
        folder: Path,
        seed: int,
        *,
        count: int = 4,
        sessions: Sessions = SESSIONS,
        patience_s: float | None = None,
        mutant: str = "",
    ) -> None:
        self._url = url
        self._folder = folder
        self._seed = seed
        self._patience_s = patience_s
        self._mutant = mutant
        self._sessions = sessions
        self._random = random.Random(seed)
        self._processes: list[Process | None] = [None] * count
        self._lives = [0] * count
        self._listening: set[asyncio.Task[None]] = set()
        self._moved = asyncio.Event()
        self._calls_of = [0] * count
        self._ending: set[Process] = set()
        self._fallen = 0
        self.kills = 0

    @property
    def calls(self) -> int:
        """How many calls have ended."""
        return sum(self._calls_of)

    async def start(self) -> None:
        await asyncio.gather(*(self._start(at) for at in range(len(self._processes))))

    async def until(self, calls: int) -> None:
        """Wait for so many calls in all.

        Raises:
            TimeoutError: They come too slowly, or not at all.
        """
        await self._until(lambda: self.calls >= calls)

    async def until_each(self, calls: int) -> None:
        """Wait until every process has made so many calls from now on."""
        goals = [made + calls for made in self._calls_of]
        await self._until(lambda: all(made >= goal for made, goal in zip(self._calls_of, goals, strict=True)))

    async def are_killed(self, calls: int) -> None:
        """Kill one of them each time that so many calls, on average, have been made."""
        while True:
            await self.until(self.calls + int(self._random.expovariate(1 / calls)))
            await settle(self.kill_one())

    async def kill_one(self) -> None:
        """Kill a process that makes calls, with what it is about, and start another in its place."""
        at = self._random.randrange(len(self._processes))
        process = self._processes[at]
        if process is None or process.returncode is not None:
            return
        self._ending.add(process)
        process.kill()
        self.kills += 1
        await process.wait()
        await self._start(at)

    async def stop(self) -> list[int | None]:
        """Let every process end its calls; return how they ended."""
        running = [process for process in self._processes if process is not None]
        self._ending.update(running)
        for process in running:
            assert process.stdin is not None
            process.stdin.write(b"stop\n")
        async with asyncio.timeout(GIVE_UP_S):
            codes = [await process.wait() for process in running]
            await asyncio.gather(*self._listening)
        return list(codes)

    def kill_all(self) -> None:
        for process in self._processes:
            if process is not None and process.returncode is None:
                process.kill()

    def recorded(self) -> list[Call]:
        """Every call of every process, the killed ones too."""
        return [call for log in sorted(self._folder.glob("*.log")) for call in recorded(log)]

    async def _until(self, is_reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(GIVE_UP_S):
            while not is_reached():
                assert not self._fallen, "a process ended by itself"
                self._moved.clear()
                await self._moved.wait()

    async def _start(self, at: int) -> None:
        name = f"w{at}.{self._lives[at]}"
        self._lives[at] += 1
        settings = Settings(
            name,
            self._url,
            str(self._folder / f"{name}.log"),
            self._seed,
            sessions=self._sessions,
            retain_s=RETAIN_S.get(at),
            patience_s=self._patience_s,
            mutant=self._mutant,
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.witness.worker", stdin=PIPE, stdout=PIPE, cwd=ROOT
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(asdict(settings)).encode() + b"\n")
        self._processes[at] = process
        task = asyncio.create_task(self._listen(at, process))
        self._listening.add(task)
        task.add_done_callback(self._listening.discard)

    async def _listen(self, at: int, process: Process) -> None:
        """Count the calls that a process says it ended."""
        assert process.stdout is not None
        while dots := await process.stdout.read(1 << 12):
            self._calls_of[at] += len(dots)
            self._moved.set()
        self._fallen += process not in self._ending
        self._moved.set()


@contextlib.asynccontextmanager
async def running(workers: Workers) -> AsyncIterator[Workers]:
    """Workers at work, which end with the block whatever happens in it."""
    try:
        await workers.start()
        yield workers
    finally:
        workers.kill_all()


async def again_and_again(seconds: float, seed: int, act: Callable[[], object]) -> None:
    """Do something at random moments, so many seconds apart on average, until it is cancelled."""
    chance = random.Random(seed)
    while True:
        await asyncio.sleep(chance.expovariate(1 / seconds))
        done = act()
        if asyncio.iscoroutine(done):
            await settle(done)


@contextlib.asynccontextmanager
async def meanwhile(*disturbing: object) -> AsyncIterator[None]:
    """Coroutines that go on while the block does."""
    tasks = [asyncio.ensure_future(one) for one in disturbing]  # type: ignore[call-overload]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome


async def quiet(url: str) -> None:
    """Wait until no statement of a dead client is under way any more."""
    connection = await asyncpg.connect(url)
    try:
        async with asyncio.timeout(GIVE_UP_S):
            while await connection.fetchval(BUSY):  # noqa: ASYNC110  # the server has no event for it
                await asyncio.sleep(0.05)
    finally:
        await connection.close()


async def finals(url: str, sessions: Sequence[str] = SESSIONS) -> list[Final]:
    """What is there when nobody writes any more, after all that is hidden was pruned."""
    async with SessionStore(url, retain=timedelta(0), maintenance_interval_s=None) as store:
        await store.prune()
        return [await _final(store, Database(url), session_id) for session_id in sessions]


async def _final(store: SessionStore, database: Database, session_id: str) -> Final:
    driver = store.backend.driver
    manifest = (await driver.load(Load(session_id))).manifest
    ops: list[Op] = []
    before: int | None = None
    while rows := await driver.operations(session_id, limit=OPS_READ, before=before):
        before = int(rows[-1].manifest.version)
        ops += [
            Op(
                Mark(int(row.manifest.version), row.manifest.version.nonce),
                row.op_id,
                row.kind,
                row.manifest.epoch,
                row.manifest.item_count,
                row.manifest.byte_count,
            )
            for row in rows
        ]
    return Final(
        session_id,
        Mark(int(manifest.version), manifest.version.nonce),
        manifest.epoch,
        tokens_of((await store.session(session_id).snapshot()).items),
        tokens_of(json.loads(row) for row in await database.item_rows(session_id)),
        tuple(reversed(ops)),
    )


def judge(history: History, figures: Figures, folder: Path) -> None:
    """Hold the history against the promises; keep it if one is broken.

    Raises:
        AssertionError: It says the seed, and where the history is: `History.load` reads it.
    """
    figures.calls = len(history.calls)
    figures.outcomes = Counter(call.outcome for call in history.calls)
    broken = check(history)
    if broken:
        path = folder / f"history-{figures.seed}.jsonl"
        history.save(path)
        lines = "\n".join(map(str, broken[:20]))
        raise AssertionError(f"{len(broken)} violations\n{lines}\n{figures}\nthe history is in {path}")


class Clock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._begin = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begin
