"""The verbs of one session: what it writes and reads. Compaction and the runner's names are in `session`."""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from cas_session import codec, events
from cas_session.backend import Backend
from cas_session.checks import check_count, check_id, check_limit, check_version, encode_metadata
from cas_session.compaction.chain import ChainState
from cas_session.compaction.runner import recorded
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
from cas_session.errors import CasSessionError, Change, SessionNotFoundError, VersionConflictError
from cas_session.retry import RetryPolicies, RetryPolicy
from cas_session.retry import retry as retry_loop
from cas_session.snapshot import Item, Snapshot, Version
from cas_session.writes import digest, new_nonce, new_op_id

if TYPE_CHECKING:
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


class SessionVerbs:
    """One session of a store, as storage. The words about errors are in `CasSession`."""

    def __init__(
        self,
        store: SessionStore,
        session_id: str,
        *,
        owner: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        retry: RetryPolicies | None = None,
    ) -> None:
        self.session_id = check_id("session_id", session_id)
        self._store = store
        self._owner = check_id("owner", owner) if owner is not None else None
        self._metadata = encode_metadata(metadata)
        self._retry = retry
        self._chain = ChainState()
        self._key = secrets.token_hex(8)  # names this object in the tokens of its runs

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.session_id!r})"

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
        return self._written(await self._backend.append(append, self._budgets(retry)), items)

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
            owner=self._owner,
            metadata=self._metadata,
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
                owner=self._owner,
                metadata=self._metadata,
            )
            landed = await self._send("replace", write, None)
            return Snapshot(self.session_id, items, self._written(landed), landed.manifest.epoch)

        def budget_of(error: Exception) -> RetryPolicy | None:
            return budget if isinstance(error, VersionConflictError) else None

        return await retry_loop(once, budget_of, timing=self._backend.timing)

    # -- reads

    async def snapshot(
        self, *, limit: int | None = None, version: int | None = None, shared: bool = False
    ) -> Snapshot:
        """Read items and version together.

        Args:
            limit: The newest so many items; None for all.
            version: As of this earlier version.
            shared: The items may be those that other readers of this store get: look, do not change them.
                Reading a long history again then costs no more than what is new.

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
            newest = loaded.rows if limit is None else loaded.rows[max(0, len(loaded.rows) - limit) :]
            items = codec.decode(self.session_id, newest)
        elif limit is None:
            loaded, items = await self._backend.read_all(self.session_id, shared=shared, policies=self._retry)
            self._was_read(loaded, items, whole=True)
        else:
            loaded = await self._load(Load(self.session_id, limit))
            items = codec.decode(self.session_id, loaded.rows)
            self._was_read(loaded, items, whole=limit >= loaded.manifest.item_count)
        return Snapshot(self.session_id, items, loaded.manifest.version, loaded.manifest.epoch)

    async def version(self) -> Version:
        """The current version; 0 if there is no session."""
        return (await self._load(Load(self.session_id, 0))).manifest.version

    async def operations(self, *, limit: int = 100, before: int | None = None) -> list[OpRow]:
        """The writes that landed, newest first, below version ``before``; who, what kind, when; no content.

        Raises:
            SessionNotFoundError: There is no such session.
        """
        check_count("limit", limit)
        if before is not None:
            check_count("before", before)
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
        check_count("limit", limit)
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

    def _was_read(self, loaded: Loaded, items: list[Item], *, whole: bool) -> None:
        self._chain.read(loaded, whole=whole)
        if (run := recorded(self._key)) is not None:
            run.read(loaded, items, whole=whole)

    def _written(self, landed: Landed, items: list[Item] | None = None) -> Version:
        self._chain.wrote(landed)
        if (run := recorded(self._key)) is not None:
            run.wrote(landed, items or [])
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
        clear = Clear(
            **self._identity(kind, op_id, expected_version),
            delete=kind == "delete",
            owner=self._owner,
            metadata=self._metadata,
        )
        backend = self._backend
        backend.cache.drop(self.session_id)
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


def _is_expected(expected: int, actual: Version) -> bool:
    strong = isinstance(expected, Version) and expected.nonce
    return expected == actual and (not strong or strong == actual.nonce)
