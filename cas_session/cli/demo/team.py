"""The processes of a run, seen from their parent: start them, hear them, give orders, end them."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self, TypeVar

from cas_session.cli.demo import process
from cas_session.cli.demo.messages import Failed, News, Order, Ready, Stop
from cas_session.cli.demo.settings import Settings
from cas_session.errors import CasSessionError

# A new interpreter each: a fork would carry the parent's threads, connections and event loop along.
_spawn = multiprocessing.get_context("spawn")

START_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 60.0
GRACE_S = 20.0  # to finish what it is at, beside a model call

N = TypeVar("N")


class WorkerFailedError(CasSessionError):
    """A process of the run ended by an error, or did not answer."""


class Worker:
    """One process.

    Args:
        role: What it does.
        number: Tells it from others of the same role.
        hear: Called with everything that it says.
    """

    def __init__(
        self,
        role: process.Role,
        number: int,
        settings: Settings,
        hear: Callable[[News], None],
    ) -> None:
        self.name = f"{role} {number}"
        self._hear = hear
        self._news: asyncio.Queue[News] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._grace_s = 2 * settings.deadline_s + GRACE_S  # a compaction makes two calls at most
        self._dismissed = False
        self._pipe, theirs = _spawn.Pipe()
        self._process = _spawn.Process(
            target=process.main,
            args=(role, number, theirs, settings),
            name=f"cas-session demo: {self.name}",
            daemon=True,
        )
        with _without_interrupts():
            self._process.start()
        theirs.close()  # so that the end of the process is the end of the pipe
        self._pump = threading.Thread(target=self._listen, daemon=True)
        self._pump.start()

    def tell(self, order: Order) -> None:
        with contextlib.suppress(OSError):  # it has ended; whoever waits for it hears of that
            self._pipe.send(order)

    async def wait_for(
        self,
        *kinds: type[N],
        session_id: str | None = None,
        timeout_s: float | None = ANSWER_TIMEOUT_S,
    ) -> N:
        """The next news of these kinds, of this session if one is named; what came before it is passed over.

        Raises:
            WorkerFailedError: The process failed, ended, or said nothing of that in time.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    news = await self._news.get()
                    if isinstance(news, Failed):
                        raise WorkerFailedError(news.error)
                    if isinstance(news, kinds) and session_id in (None, getattr(news, "session_id", None)):
                        return news
        except TimeoutError as error:
            raise WorkerFailedError(
                f"{self.name}: no {kinds[0].__name__} within {timeout_s:g} seconds"
            ) from error

    async def dismiss(self) -> None:
        """Tell it to finish what it is at, and hear what it has to say until it has ended.

        A process that does not end is killed.
        """
        self._dismissed = True
        self.tell(Stop())
        await asyncio.to_thread(self._process.join, self._grace_s)
        if self._process.is_alive():
            self._take(Failed(f"{self.name}: did not end within {self._grace_s:g} seconds"))
            self._process.kill()
        await asyncio.to_thread(self._pump.join)

    def kill(self) -> None:
        """End it at once, if it has not ended by itself."""
        self._dismissed = True
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self._pump.join()
        self._pipe.close()

    def _listen(self) -> None:
        while True:
            try:
                news = self._pipe.recv()
            except (EOFError, OSError):
                if not self._dismissed:
                    self._pass_on(Failed(f"{self.name}: the process ended before it was told to"))
                return
            self._pass_on(news)

    def _pass_on(self, news: News) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(self._take, news)

    def _take(self, news: News) -> None:
        self._news.put_nowait(news)
        self._hear(news)


class Team:
    """All processes of a run; none of them is left when the ``async with`` block has ended."""

    def __init__(self) -> None:
        self._workers: list[Worker] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.kill()

    def start(
        self,
        role: process.Role,
        number: int,
        settings: Settings,
        hear: Callable[[News], None],
    ) -> Worker:
        worker = Worker(role, number, settings, hear)
        self._workers.append(worker)
        return worker

    async def ready(self) -> None:
        """Wait until every process is connected to the database."""
        await asyncio.gather(*(worker.wait_for(Ready, timeout_s=START_TIMEOUT_S) for worker in self._workers))

    async def dismiss(self) -> None:
        """Let every process finish what it is at, and end."""
        await asyncio.gather(*(worker.dismiss() for worker in self._workers))


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """A process that is started here does not hear Ctrl-C, not even before its own code runs."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
