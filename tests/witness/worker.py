"""A process that reads and writes at random, and writes down each call: ``python -m tests.witness.worker``.

Its settings are one line of JSON on standard input. It goes on until the next line, or until standard input
ends, and says ``.`` for each call that ended. A call is written down when it begins and when it ended, so
that what a killed process did is known as far as anybody could know it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from unittest.mock import patch

from cas_session import (
    CasSession,
    CompactionPolicy,
    Item,
    RetryPolicies,
    RetryPolicy,
    SessionStore,
    StorageUnavailableError,
    VersionConflictError,
    WriteOutcomeUnknownError,
    verbs,
)
from cas_session.compactors.base import CompactionRequest
from cas_session.errors import CompactorError, SessionNotFoundError, VersionNotRetainedError
from cas_session.events import CancelledWrite, Event, WriteAttempt
from cas_session.retry import CONFLICT, OUTCOME, TRANSIENT
from cas_session.snapshot import Snapshot, Version
from cas_session.writes import new_op_id
from tests.witness.history import PIN, item_of, tokens_of

Sessions = tuple[str, ...]

# How often each call is made. Histories stay short, for what shortens them comes often enough.
WEIGHTS = {
    "append": 30,
    "append if": 6,
    "pop": 5,
    "pop if": 2,
    "clear": 2,
    "clear if": 1,
    "delete": 1,
    "replace": 3,
    "update": 3,
    "restore": 5,
    "compact": 6,
    "read": 24,
    "read newest": 4,
    "read as of": 5,
    "prune": 2,
}
CANCELLED = 0.02  # of the writes
FRESH = 0.7  # of the conditional writes look first
MODEL_S = 0.03  # that a compactor takes at most

_call: ContextVar[str] = ContextVar("_call")


@dataclass(frozen=True)
class Settings:
    """What a worker is told.

    Attributes:
        name: Of this process; it begins the ids of its calls.
        log: The file that its calls are written to.
        retain_s: Seconds for which its store keeps what is hidden, when it prunes, as it does at times; None:
            it does not prune.
        patience_s: Seconds after which it gives a write up; None: the budgets of the library.
        mutant: The name of the wrong store that it uses; empty: the real one.
    """

    name: str
    url: str
    log: str
    seed: int
    sessions: Sessions = ("hot", "warm", "mild")
    clients: int = 3
    retain_s: float | None = None
    patience_s: float | None = None
    mutant: str = ""

    @property
    def retry(self) -> RetryPolicies:
        if self.patience_s is None:
            return RetryPolicies(transient=TRANSIENT, conflict=CONFLICT, outcome=OUTCOME)
        patient = RetryPolicy(max_attempts=None, deadline_s=self.patience_s, wait_initial_s=0.05)
        return RetryPolicies(transient=patient, conflict=CONFLICT, outcome=patient)

    def store(self, **options: Any) -> SessionStore:
        if self.retain_s is not None:
            options["retain"] = timedelta(seconds=self.retain_s)
        options |= {"retry": self.retry, "worker": self.name, "maintenance_interval_s": None}
        return SessionStore(self.url, **options)


@dataclass
class Log:
    """The calls of one process, a line each time something is known of one.

    Attributes:
        told: What an event told of a call that was cancelled.
        resent: Calls that were sent more than once.
    """

    file: int
    told: dict[str, str] = field(default_factory=dict)
    resent: set[str] = field(default_factory=set)

    def write(self, call: str, **known: Any) -> None:
        """One write to the file, so that a kill tears the last line at most."""
        os.write(self.file, json.dumps({"id": call, **known}).encode() + b"\n")

    def hear(self, event: Event) -> None:
        """The store's hook."""
        if isinstance(event, WriteAttempt | CancelledWrite):
            call = event.op_id.removeprefix("compact-").partition("/")[0]
            if isinstance(event, CancelledWrite):
                self.told[call] = event.outcome
            elif event.outcome in ("not_landed", "unknown"):
                self.resent.add(call)


class Client:
    """One of the callers in a process. They share its store, so that their appends leave together."""

    def __init__(self, name: str, settings: Settings, store: SessionStore, log: Log) -> None:
        self._name = name
        self._store = store
        self._log = log
        self._random = random.Random(f"{settings.seed}-{name}")
        self._sessions = settings.sessions
        self._prunes = settings.retain_s is not None
        self._seen: dict[str, Version] = {}
        self._calls = 0

    async def call(self) -> None:
        """Make one call."""
        self._calls += 1
        call = f"{self._name}-{self._calls}"
        names = [name for name in WEIGHTS if name != "prune" or self._prunes]
        (name,) = self._random.choices(names, [WEIGHTS[name] for name in names])
        session_id = self._random.choices(self._sessions, range(len(self._sessions), 0, -1))[0]
        session = self._store.session(
            session_id, compactor=self._compactor(call), policy=self._random.choice(POLICIES)
        )
        known: dict[str, Any] = {"session": "" if name == "prune" else session_id}
        act = getattr(self, f"_{name.removesuffix(' if').replace(' ', '_')}")
        if name.endswith(" if") or name in ("replace", "restore"):
            known["expected"] = await self._expected(session)
        await self._written_down(call, VERBS.get(name, name), known, lambda: act(session, call, known))

    # What is called. Each fills in what is known of it before it begins, and returns what is known then.

    async def _append(self, session: CasSession, call: str, known: dict[str, Any]) -> dict[str, Any]:
        known["items"] = self._tokens(call)
        self._begin(call, known)
        items = [item_of(token) for token in known["items"]]
        return self._landed(session, await session.append(items, expected_version=_version(known)))

    async def _pop(self, session: CasSession, call: str, known: dict[str, Any]) -> dict[str, Any]:
        self._begin(call, known)
        item, version = await session.pop(expected_version=_version(known))
        # Whether there was nothing to pop, or what it popped is gone since, the op rows tell.
        landed = self._landed(session, version)
        return landed | ({"outcome": "nothing"} if item is None else {"item": tokens_of([item])[0]})

    async def _clear(self, session: CasSession, call: str, known: dict[str, Any]) -> dict[str, Any]:
        self._begin(call, known)
        return self._landed(session, await session.clear(expected_version=_version(known)))

    async def _delete(self, session: CasSession, call: str, known: dict[str, Any]) -> dict[str, Any]:
        self._begin(call, known)
        return self._landed(session, await session.delete())

    async def _replace(self, session: CasSession, call: str, known: dict[str, Any]) -> dict[str, Any]:
        known["items"] = self._tokens(call)
        self._begin(call, known)
        items = [item_of(token) for token in known["items"]]
        return self._landed(session, await session.replace(items, expected_version=_version(known) or 0))

    async def _restore(self, session: CasSession, call: str, known: dict[str, Any]) -> dict[str, Any]:
        expected = _version(known) or Version(0)
        known["target"] = max(0, expected - self._random.randint(1, 6))
        self._begin(call, known)
        return self._landed(session, await session.restore(known["target"], expected_version=expected))

    async def _update(self, session: CasSession, call: str, known: dict[str, Any]) -> dict[str, Any]:
        self._begin(call, known)
        tries = 0

        def edit(items: list[Item]) -> list[Item]:
            nonlocal tries
            tries += 1
            given = tokens_of(items)
            made = (*given[1:], f"{call}.{tries}")
            self._log.write(call, step=[given, made])
            return [item_of(token) for token in made]

        return self._landed(session, (await session.update(edit)).version)

    async def _compact(self, session: CasSession, call: str, known: dict[str, Any]) -> dict[str, Any]:
        self._begin(call, known)
        run = session._run(force=True)
        run._attempt_id = f"{call}/{run._attempt_id}"
        report = await run.run()
        if report.landed:
            self._seen[session.session_id] = report.version_after
            return {"outcome": "landed", "version": report.version_after, "planned": report.version_before}
        return {"outcome": "did not land", "error": f"{report.status} {report.error}"}

    async def _read(self, session: CasSession, call: str, known: dict[str, Any]) -> dict[str, Any]:
        self._begin(call, known)
        shared = self._random.random() < 0.5
        return self._was_read(session, await session.snapshot(shared=shared))

    async def _read_newest(self, session: CasSession, call: str, known: dict[str, Any]) -> dict[str, Any]:
        known["limit"] = self._random.randint(0, 8)
        self._begin(call, known)
        return self._was_read(session, await session.snapshot(limit=known["limit"]))

    async def _read_as_of(self, session: CasSession, call: str, known: dict[str, Any]) -> dict[str, Any]:
        seen = self._seen.get(session.session_id, Version(1))
        known["target"] = max(1, seen - self._random.randint(0, 8))
        self._begin(call, known)
        return _read(await session.snapshot(version=known["target"]))

    async def _prune(self, session: CasSession, call: str, known: dict[str, Any]) -> dict[str, Any]:
        self._begin(call, known)
        await self._store.prune()
        return {"outcome": "nothing"}

    # How it is written down

    def _begin(self, call: str, known: dict[str, Any]) -> None:
        self._log.write(call, begin=time.monotonic_ns(), **known)

    async def _written_down(
        self, call: str, verb: str, known: dict[str, Any], act: Callable[[], Awaitable[dict[str, Any]]]
    ) -> None:
        known["verb"] = verb
        _call.set(call)
        acting = asyncio.ensure_future(act())
        if self._random.random() < CANCELLED:
            asyncio.get_running_loop().call_later(self._random.expovariate(200), acting.cancel)
        ended: dict[str, Any]
        try:
            ended = await acting
        except VersionConflictError as error:
            ended = {"outcome": "conflict", "version": error.actual, "change": error.change}
            if verb == "update":  # its last try's
                ended["expected"] = _mark(error.expected)
        except VersionNotRetainedError as error:
            ended = {"outcome": "not retained", "reason": error.reason}
        except WriteOutcomeUnknownError as error:
            ended = {"outcome": "unknown", "error": str(error)}
        except (StorageUnavailableError, CompactorError) as error:
            ended = {"outcome": "did not land", "error": str(error)}
        except SessionNotFoundError as error:
            ended = {"outcome": "nothing", "error": str(error)}
        except Exception as error:  # noqa: BLE001  # a finding
            ended = {"outcome": "raised", "error": repr(error)}
        except asyncio.CancelledError:
            ended = self._cancelled(call, verb)
        if isinstance(ended.get("version"), Version):
            ended["version"] = _mark(ended["version"])
        if isinstance(ended.get("planned"), Version):
            ended["planned"] = _mark(ended["planned"])
        self._log.write(call, end=time.monotonic_ns(), resent=call in self._log.resent, **ended)

    def _cancelled(self, call: str, verb: str) -> dict[str, Any]:
        """An event told the outcome; without one, nothing was sent. A compaction has more than one write."""
        told = self._log.told.get(call, "not_landed" if verb != "compact" else "unknown")
        outcomes = {"landed": "landed", "not_landed": "did not land", "unknown": "unknown"}
        if verb == "pop" and told == "landed":
            told = "unknown"  # it may have found nothing to write
        return {"outcome": outcomes[told], "error": "cancelled"}

    def _landed(self, session: CasSession, version: Version) -> dict[str, Any]:
        self._seen[session.session_id] = version
        return {"outcome": "landed", "version": version}

    def _was_read(self, session: CasSession, snapshot: Snapshot) -> dict[str, Any]:
        self._seen[session.session_id] = snapshot.version
        return _read(snapshot)

    # What it decides

    async def _expected(self, session: CasSession) -> tuple[int, str]:
        """The version that a conditional write names: what is there now, or what was seen some time ago."""
        version = self._seen.get(session.session_id, Version(0))
        if self._random.random() < FRESH:
            with suppress(StorageUnavailableError):
                version = await session.version()
        return _mark(version)

    def _tokens(self, call: str) -> list[str]:
        pin = PIN if self._random.random() < 0.03 else ""
        kinds = "ua"
        return [f"{pin}{call}.{at}{kinds[at % 2]}" for at in range(self._random.randint(1, 3))]

    def _compactor(self, call: str) -> Callable[[CompactionRequest], Awaitable[list[Item]]]:
        tries = 0

        async def compact(request: CompactionRequest) -> list[Item]:
            nonlocal tries
            tries += 1
            made = [f"{call}.{tries}.{at}" for at in range(self._random.randint(1, 5))]
            await asyncio.sleep(self._random.uniform(0, MODEL_S))
            self._log.write(call, step=[tokens_of(request.items), made])
            return [item_of(token) for token in made]

        return compact


VERBS = {"append if": "append", "pop if": "pop", "clear if": "clear", "read newest": "read"}


def _is_pinned(item: Item) -> bool:
    return str(item.get("content")).startswith(PIN)


# A lease that a killed process left is soon taken over.
POLICIES = [
    CompactionPolicy(
        keep_last_turns=turns,
        pinned=_is_pinned,
        on_append=on_append,
        on_error="raise",
        deadline_s=1,
        lease_s=1.2,
    )
    for turns in (0, 1, 3)
    for on_append in ("rebase", "rebase", "retry")
]


def _version(known: dict[str, Any]) -> Version | None:
    return Version(*known["expected"]) if "expected" in known else None


def _mark(version: int) -> tuple[int, str]:
    return int(version), version.nonce if isinstance(version, Version) else ""


def _read(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "outcome": "read",
        "version": snapshot.version,
        "epoch": snapshot.epoch,
        "items": tokens_of(snapshot.items),
    }


@contextmanager
def named_writes() -> Iterator[None]:
    """Let every op_id begin with the call that it belongs to."""
    with patch.object(verbs, "new_op_id", lambda: f"{_call.get()}/{new_op_id()}"):
        yield


async def work(settings: Settings, stopped: asyncio.Event, done: Callable[[], object]) -> None:
    """Call until it is told to stop, and say ``done`` for each call that ended."""
    file = os.open(settings.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    log = Log(file)
    store = await _opened(settings, log)
    try:
        clients = [Client(f"{settings.name}.{at}", settings, store, log) for at in range(settings.clients)]

        async def go_on(client: Client) -> None:
            while not stopped.is_set():
                await client.call()
                done()

        await asyncio.gather(*(go_on(client) for client in clients))
    finally:
        await store.aclose()
        os.close(file)


async def _opened(settings: Settings, log: Log) -> SessionStore:
    """An open store, however often its connections are cut meanwhile."""
    while True:
        try:
            return await settings.store(on_event=log.hear).open()
        except StorageUnavailableError:
            await asyncio.sleep(0.05)


async def _main(settings: Settings) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), stopped.set)
    out = sys.stdout.fileno()
    if settings.mutant:
        from tests.witness import mutants

        mutants.use(settings.mutant, "sqlite" if settings.url.startswith("sqlite") else "postgres")
    with named_writes():
        await work(settings, stopped, lambda: os.write(out, b"."))


if __name__ == "__main__":
    # Unbuffered, so that no line behind it is read, which nobody would hear of then.
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as told:
        line = told.readline()
    asyncio.run(_main(Settings(**json.loads(line))))
