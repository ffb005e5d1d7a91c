"""CasSession: the verbs of one session, and the names under which openai-agents knows them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

from cas_session import codec, events
from cas_session.backend import Backend
from cas_session.checks import check_id, check_limit, check_version, encode_metadata
from cas_session.compaction.chain import ChainState
from cas_session.compaction.engine import MODES, CompactionRun, Hooks, Mode
from cas_session.compaction.plan import Plan
from cas_session.compaction.policy import CompactionPolicy
from cas_session.compaction.report import CompactionReport
from cas_session.compaction.runner import add_usage, used_tokens
from cas_session.compactors.base import as_compactor
from cas_session.driver import (
    Append,
    Clear,
    CompactionRow,
    Driver,
    Kind,
    Landed,
    Load,
    Loaded,
    OpRow,
    Pop,
    Replace,
    Restore,
)
from cas_session.errors import (
    CasSessionError,
    Change,
    ConfigurationError,
    SessionNotFoundError,
    VersionConflictError,
)
from cas_session.retry import RetryPolicies, RetryPolicy
from cas_session.retry import retry as retry_loop
from cas_session.snapshot import Item, Snapshot, Version
from cas_session.writes import digest, new_nonce, new_op_id

if TYPE_CHECKING:
    from agents.items import TResponseInputItem
    from agents.memory import OpenAIResponsesCompactionArgs, SessionSettings

    from cas_session.compactors import CompactFunction, Compactor
    from cas_session.store import SessionStore

UpdateFn = Callable[[list[Item]], list[Item] | Awaitable[list[Item]]]


class _Identity(TypedDict):
    """The part of a write that is the same for every kind."""

    session_id: str
    op_id: str
    nonce: str
    digest: bytes
    expected: int | None
    fenced: bool
    worker: str


class CasSession:
    """One session of a store. Making one does no I/O; any number of them may stand for the same session.

    A session that does not exist, or is deleted, reads as [] with version 0 or its tombstone's version; the
    first append creates it. Every write raises

    - `VersionConflictError` if ``expected_version`` is not the version that is there: nothing was written;
    - `StorageUnavailableError` if it did not land;
    - `WriteOutcomeUnknownError` if it may have landed: re-sending it with the same op_id is safe;
    - `ItemEncodingError` or `ValueError` for what cannot be stored, before anything is written.
    """

    session_settings: SessionSettings | None = None
    """openai-agents' settings; their ``limit`` is the default of `get_items`."""

    def __init__(
        self,
        store: SessionStore,
        session_id: str,
        *,
        owner: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        compactor: Compactor | CompactFunction | None = None,
        policy: CompactionPolicy | None = None,
        retry: RetryPolicies | None = None,
    ) -> None:
        self.session_id = check_id("session_id", session_id)
        self._store = store
        self._owner = check_id("owner", owner) if owner is not None else None
        self._metadata = encode_metadata(metadata)
        self._compactor = as_compactor(compactor) if compactor is not None else None
        self._policy = policy if policy is not None else CompactionPolicy()
        self._retry = retry
        self._chain = ChainState()
        if compactor is None:
            self.run_compaction = None  # type: ignore[method-assign,assignment]  # a runner sees a plain session

    def __repr__(self) -> str:
        return f"CasSession({self.session_id!r})"

    # -- writes

    async def append(
        self,
        items: list[Item],
        *,
        expected_version: int | None = None,
        op_id: str | None = None,
        retry: RetryPolicy | None = None,
    ) -> Version:
        """Append items as one block, in the order in which the database takes the appends.

        Args:
            items: JSON objects; [] writes nothing and returns the current version.
            expected_version: Only if the session is at this version; 0: only if there is none. Without it
                the append always lands, whatever others write.
            op_id: An identity for retries of your own: the same append under it lands once.
            retry: Replaces the store's budgets for this call.
        """
        encoded = codec.encode(items)
        if not encoded.texts:
            return await self._nothing_to_write(expected_version)
        append = Append(
            **self._identity("append", op_id, expected_version, encoded.texts),
            texts=encoded.texts,
            sizes=encoded.sizes,
            owner=self._owner,
            metadata=self._metadata,
        )
        return self._written(await self._backend.append(append, self._budgets(retry)))

    async def pop(
        self, *, expected_version: int | None = None, retry: RetryPolicy | None = None
    ) -> tuple[Item | None, Version]:
        """Remove the last item and return it with the new version; (None, version) if there is none."""
        pop = Pop(**self._identity("pop", None, expected_version))
        landed = await self._backend.pop(pop, self._budgets(retry))
        version = self._written(landed)
        if landed.item is None:
            return None, version
        return codec.decode(self.session_id, [(landed.manifest.next_seq - 1, landed.item)])[0], version

    async def clear(
        self,
        *,
        expected_version: int | None = None,
        op_id: str | None = None,
        retry: RetryPolicy | None = None,
    ) -> Version:
        """Erase every item for good: no compaction, response chain, restore or re-sent write brings one back.

        It moves the version also when the session is empty or does not exist, so that whoever still works
        on what was there learns of it.
        """
        return await self._erase("clear", op_id, expected_version, retry)

    async def replace(
        self,
        items: list[Item],
        *,
        expected_version: int,
        op_id: str | None = None,
        retry: RetryPolicy | None = None,
    ) -> Version:
        """Replace the whole history, if it is still at ``expected_version``. All or nothing.

        What was replaced can be read and restored for the store's ``retain``.
        """
        if expected_version is None:
            raise ValueError("replace needs expected_version: the version of the snapshot it was made from")
        encoded = codec.encode(items)
        write = Replace(
            **self._identity("replace", op_id, expected_version, encoded.texts),
            texts=encoded.texts,
            sizes=encoded.sizes,
        )
        return self._written(await self._send("replace", write, retry))

    async def restore(
        self, version: int, *, expected_version: int, retry: RetryPolicy | None = None
    ) -> Version:
        """Make the items of an earlier version the current ones, as a new write.

        Raises:
            SessionNotFoundError: There is no such session.
            VersionNotRetainedError: Erased, or older than ``retain``.
            ValueError: The version was not written yet.
        """
        if expected_version is None:
            raise ValueError("restore needs expected_version: the session's current version")
        write = Restore(
            **self._identity("restore", None, expected_version, detail=str(int(check_version(version)))),
            version=version,
        )
        return self._written(await self._send("restore", write, retry))

    async def delete(
        self, *, expected_version: int | None = None, retry: RetryPolicy | None = None
    ) -> Version:
        """Clear, drop the metadata, and leave the session out of lists. Its version stays and goes on."""
        return await self._erase("delete", None, expected_version, retry)

    async def update(self, fn: UpdateFn, *, retry: RetryPolicy | None = None) -> Snapshot:
        """Read, let ``fn`` decide, replace; again from the current state if another write came between.

        Args:
            fn: Gets fresh items, may change them, and returns the list to store; sync or async. It is called
                once for each attempt, with nothing held. An unchanged list writes nothing.
            retry: Replaces the conflict budget.

        Returns:
            What the session holds now.

        Raises:
            VersionConflictError: The conflict budget is spent; nothing was written.
            TypeError: ``fn`` returned no list.
        """
        budget = retry if retry is not None else (self._retry or self._backend.policies).conflict

        async def once() -> Snapshot:
            loaded = await self._load(Load(self.session_id))
            before = loaded.manifest
            result = fn(codec.decode(self.session_id, loaded.rows))
            items = await result if inspect.isawaitable(result) else result
            if not isinstance(items, list):
                raise TypeError(f"update: the function must return the list of items, not {items!r}")
            encoded = codec.encode(items)
            if list(encoded.texts) == [text for _, text in loaded.rows]:
                return Snapshot(self.session_id, items, before.version, before.epoch)
            write = Replace(
                **self._identity("replace", None, before.version, encoded.texts),
                texts=encoded.texts,
                sizes=encoded.sizes,
            )
            landed = await self._send("replace", write, None)
            return Snapshot(self.session_id, items, self._written(landed), landed.manifest.epoch)

        def budget_of(error: Exception) -> RetryPolicy | None:
            return budget if isinstance(error, VersionConflictError) else None

        return await retry_loop(once, budget_of, timing=self._backend.timing)

    # -- reads

    async def snapshot(self, *, limit: int | None = None, version: int | None = None) -> Snapshot:
        """Read items and version together.

        Args:
            limit: The newest so many items; None for all.
            version: As of this earlier version.

        Raises:
            VersionNotRetainedError: That version is erased, or older than ``retain``.
            SessionNotFoundError: An earlier version of a session that does not exist.
        """
        check_limit(limit)
        if version is not None:
            check_version(version)
            loaded = await self._backend.call(
                lambda driver: driver.load_as_of(self.session_id, version), self._retry
            )
            rows = (
                loaded.rows
                if limit is None
                else loaded.rows[len(loaded.rows) - min(limit, len(loaded.rows)) :]
            )
        else:
            loaded = await self._load(Load(self.session_id, limit))
            self._chain.read(loaded, whole=limit is None or limit >= loaded.manifest.item_count)
            rows = loaded.rows
        items = codec.decode(self.session_id, rows)
        return Snapshot(self.session_id, items, loaded.manifest.version, loaded.manifest.epoch)

    async def version(self) -> Version:
        """The current version; 0 if there is no session."""
        return (await self._load(Load(self.session_id, 0))).manifest.version

    async def operations(self, *, limit: int = 100, before: int | None = None) -> list[OpRow]:
        """The writes that landed, newest first, below version ``before``; who, what kind, when; no content.

        Raises:
            SessionNotFoundError: There is no such session.
        """
        check_limit(limit)
        rows = await self._backend.call(
            lambda driver: driver.operations(self.session_id, limit=limit, before=before), self._retry
        )
        if not rows:
            await self._must_exist()
        return rows

    async def compactions(self, *, limit: int = 100) -> list[CompactionRow]:
        """The compaction attempts, newest first.

        Raises:
            SessionNotFoundError: There is no such session.
        """
        check_limit(limit)
        rows = await self._backend.call(
            lambda driver: driver.compactions(self.session_id, limit=limit), self._retry
        )
        if not rows:
            await self._must_exist()
        return rows

    async def metadata(self) -> dict[str, Any] | None:
        """The user's own metadata.

        Raises:
            SessionNotFoundError: There is no such session, or it is deleted.
        """
        loaded = await self._must_exist()
        if loaded.row is None or loaded.row.metadata is None:
            return None
        return codec.decode(self.session_id, [(0, loaded.row.metadata)])[0]

    async def set_metadata(self, metadata: Mapping[str, Any] | None) -> None:
        """Replace the user's own metadata. No version moves.

        Raises:
            SessionNotFoundError: There is no such session, or it is deleted.
        """
        text = encode_metadata(metadata)
        if not await self._backend.call(
            lambda driver: driver.set_metadata(self.session_id, text), self._retry
        ):
            raise SessionNotFoundError(self.session_id)

    # -- compaction

    async def compact(
        self,
        *,
        force: bool = False,
        response_id: str | None = None,
        store: bool | None = None,
        mode: Mode | None = None,
    ) -> CompactionReport:
        """Make the history shorter, while everybody goes on writing.

        Args:
            force: Whatever trigger and min_savings say.
            response_id: The provider's response that ends the history as this object read and wrote it.
            store: Whether the provider kept that response; None if not known, which counts as kept.
            mode: How the model gets the history; None: the compactor's own choice.

        Raises:
            ConfigurationError: The session has no compactor.
            ValueError: previous_response_id mode without a response id that is still right.
            CasSessionError: Failures, if the policy says ``on_error="raise"``.
        """
        return await self._run(force=force, mode=mode, response=_response(response_id, store)).run()

    async def plan_compaction(
        self, *, force: bool = False, mode: Mode | None = None
    ) -> Plan | CompactionReport:
        """What `compact` would do now, without doing it: the plan, or the report that it would end with."""
        return await self._run(force=force, mode=mode).plan()

    # -- openai-agents

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """`snapshot` under openai-agents' name; without a limit that of `session_settings` counts."""
        snapshot = await self.snapshot(limit=limit if limit is not None else self._default_limit())
        return cast("list[TResponseInputItem]", snapshot.items)

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """`append` under openai-agents' name."""
        await self.append(cast("list[Item]", items))

    async def pop_item(self) -> TResponseInputItem | None:
        """`pop` under openai-agents' name."""
        return cast("TResponseInputItem | None", (await self.pop())[0])

    async def clear_session(self) -> None:
        """`clear` under openai-agents' name."""
        await self.clear()

    async def run_compaction(
        self,
        args: OpenAIResponsesCompactionArgs | None = None,
        *,
        wrapper: Any = None,
    ) -> None:
        """`compact` in openai-agents' shape. It fails no finished turn: the report and the events tell.

        ``CAS_SESSION_COMPACTION=off`` in the environment switches it off.

        Args:
            args: response_id, store, force and compaction_mode, as the runner gives them.
            wrapper: The run's context; the usage of the compaction is added to its usage.

        Raises:
            ValueError: previous_response_id mode without a response id that is still right.
        """
        given: Mapping[str, Any] = args or {}
        if os.environ.get("CAS_SESSION_COMPACTION", "").lower() == "off":
            report = CompactionReport(session_id=self.session_id, status="disabled")
            events.publish(self._backend.hook, events.CompactionFinished(report))
            return
        run = self._run(
            force=bool(given.get("force", False)),
            mode=given.get("compaction_mode"),
            response=_response(given.get("response_id"), given.get("store")),
            wrapper=wrapper,
        )
        if self._policy.background:
            self._backend.spawn(run.run_unattended())
        else:
            await run.run()

    async def _defer_compaction(self, response_id: str, store: bool | None = None) -> None:
        """Called by a runner instead of `run_compaction` while tool outputs are still to be answered."""
        if self._compactor is None or self._get_deferred_compaction_response_id() is not None:
            return
        try:
            await self._run(response=(response_id, store)).defer()
        except CasSessionError as error:  # the turn is stored; the next one will ask again
            events.logger.warning("session %r: the compaction was not deferred: %s", self.session_id, error)

    def _get_deferred_compaction_response_id(self) -> str | None:
        """Asked by a runner without await: what the last read or write of this object saw."""
        return self._chain.chain.deferred_id

    # -- inside

    @property
    def _backend(self) -> Backend:
        return self._store.backend

    def _identity(
        self,
        kind: Kind,
        op_id: str | None,
        expected_version: int | None,
        texts: tuple[str, ...] = (),
        detail: str = "",
    ) -> _Identity:
        own = check_id("op_id", op_id) if op_id is not None else new_op_id()
        return {
            "session_id": self.session_id,
            "op_id": own,
            "nonce": new_nonce(),
            "digest": digest(kind, own, texts, detail),
            "expected": check_version(expected_version) if expected_version is not None else None,
            "fenced": op_id is not None,
            "worker": self._backend.worker,
        }

    def _budgets(self, policy: RetryPolicy | None) -> RetryPolicies | None:
        if policy is None:
            return self._retry
        return RetryPolicies(transient=policy, conflict=policy, outcome=policy)

    def _written(self, landed: Landed) -> Version:
        self._chain.wrote(landed)
        return landed.manifest.version

    async def _load(self, load: Load) -> Loaded:
        return await self._backend.load(load, self._retry)

    async def _send(self, kind: Kind, write: Replace | Restore, policy: RetryPolicy | None) -> Landed:
        async def verb(driver: Driver, sending: Replace | Restore) -> Landed:
            if isinstance(sending, Replace):
                return await driver.replace(sending)
            return await driver.restore(sending)

        return await self._backend.write(kind, write, verb, self._budgets(policy))

    async def _erase(
        self,
        kind: Literal["clear", "delete"],
        op_id: str | None,
        expected_version: int | None,
        policy: RetryPolicy | None,
    ) -> Version:
        clear = Clear(**self._identity(kind, op_id, expected_version), delete=kind == "delete")
        backend = self._backend
        landed = await backend.write(
            kind, clear, lambda driver, sending: driver.clear(sending), self._budgets(policy)
        )
        backend.spawn(self._remove_erased(backend))
        return self._written(landed)

    async def _remove_erased(self, backend: Backend) -> None:
        """Nobody can read the rows any more; what a failure leaves, prune takes."""
        try:
            await backend.call(lambda driver: driver.remove_erased(self.session_id), self._retry)
        except CasSessionError as error:
            events.publish(backend.hook, events.ErasureFailed(self.session_id, error))

    async def _nothing_to_write(self, expected_version: int | None) -> Version:
        loaded = await self._load(Load(self.session_id, 0))
        actual = loaded.manifest.version
        if expected_version is not None and not _is_expected(check_version(expected_version), actual):
            change = await self._change_since(expected_version, loaded)
            raise VersionConflictError(
                self.session_id, expected=expected_version, actual=actual, change=change
            )
        return actual

    async def _change_since(self, expected: int, loaded: Loaded) -> Change:
        """What came between an expected version and the session as it was loaded."""
        if loaded.row is None or loaded.manifest.version == 0:
            return "missing"
        if loaded.row.deleted_at is not None:
            return "deleted"
        if expected == 0:
            return "appended" if loaded.manifest.epoch == 0 else "rewritten"
        found = await self._backend.call(
            lambda driver: driver.operations(self.session_id, limit=1, before=expected + 1), self._retry
        )
        known = [op.manifest for op in found if _is_expected(expected, op.manifest.version)]
        return "appended" if known and known[0].epoch == loaded.manifest.epoch else "rewritten"

    async def _must_exist(self) -> Loaded:
        loaded = await self._load(Load(self.session_id, 0))
        if loaded.row is None or loaded.row.deleted_at is not None or loaded.manifest.version == 0:
            raise SessionNotFoundError(self.session_id)
        return loaded

    def _default_limit(self) -> int | None:
        settings = self.session_settings
        return settings.get("limit") if isinstance(settings, dict) else getattr(settings, "limit", None)

    def _run(
        self,
        *,
        force: bool = False,
        mode: Mode | None = None,
        response: tuple[str, bool | None] | None = None,
        wrapper: Any = None,
    ) -> CompactionRun:
        if self._compactor is None:
            raise ConfigurationError(
                f"session {self.session_id!r} has no compactor: give one to the store or to store.session()"
            )
        chosen: Mode = mode if mode is not None else getattr(self._compactor, "mode", "input")
        if chosen not in MODES:
            raise ValueError(f"mode is one of {MODES}, not {chosen!r}")

        def landed(result: Landed) -> None:
            self._written(result)
            if wrapper is not None:
                wrapper._session_compaction_completed = True

        return CompactionRun(
            self._backend,
            self.session_id,
            compactor=self._compactor,
            policy=self._policy,
            state=replace(self._chain) if self._policy.background else self._chain,
            force=force,
            mode=chosen,
            response=response,
            used_tokens=used_tokens(wrapper),
            hooks=Hooks(landed=landed, paid=lambda usage: add_usage(wrapper, usage)),
            policies=self._retry,
        )


def _response(response_id: str | None, stored: bool | None) -> tuple[str, bool | None] | None:
    return (response_id, stored) if response_id else None


def _is_expected(expected: int, actual: Version) -> bool:
    strong = isinstance(expected, Version) and expected.nonce
    return expected == actual and (not strong or strong == actual.nonce)
