"""CasSession: one session, its compaction, and the names under which openai-agents knows it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, cast

from cas_session import events
from cas_session.compaction.engine import ENVELOPES, MODES, CompactionRun, Hooks, Mode
from cas_session.compaction.plan import Plan
from cas_session.compaction.policy import CompactionPolicy
from cas_session.compaction.report import CompactionReport
from cas_session.compaction.runner import (
    Run,
    add_usage,
    check_sdk,
    recording,
    run_behind,
    run_of,
    tell_landed,
    used_tokens,
    withheld_from,
)
from cas_session.compactors.base import as_compactor
from cas_session.driver import Landed
from cas_session.errors import ConfigurationError
from cas_session.retry import RetryPolicies
from cas_session.snapshot import Item
from cas_session.verbs import SessionVerbs

if TYPE_CHECKING:
    from agents.items import TResponseInputItem
    from agents.memory import OpenAIResponsesCompactionArgs, SessionSettings

    from cas_session.compactors import CompactFunction, Compactor
    from cas_session.store import SessionStore

DEFAULT_POLICY = CompactionPolicy()


class CasSession(SessionVerbs):
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
        super().__init__(store, session_id, owner=owner, metadata=metadata, retry=retry)
        self._compactor = as_compactor(compactor) if compactor is not None else None
        self._policy = policy if policy is not None else DEFAULT_POLICY
        self._last_run: Run | None = None
        self._told_envelopes = False
        if compactor is None:
            self.run_compaction = None  # type: ignore[method-assign,assignment]  # a runner sees a plain session

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
        check_sdk()
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
        if _is_switched_off():
            report = CompactionReport(session_id=self.session_id, status="disabled")
            events.publish(self._backend.hook, events.CompactionFinished(report))
            return
        behind = run_behind(wrapper, self._key)
        compaction = self._run(
            force=bool(given.get("force", False)),
            mode=given.get("compaction_mode"),
            response=_response(given.get("response_id"), given.get("store")),
            behind=behind,
            wrapper=wrapper,
        )

        async def unattended() -> None:
            self._log_refusal(await compaction.run_unattended(), behind)

        if self._policy.background:
            self._backend.spawn(unattended())
        else:
            self._log_refusal(await compaction.run(), behind)

    async def _get_items_with_generation(
        self, read: Callable[[], Awaitable[list[TResponseInputItem]]]
    ) -> tuple[list[TResponseInputItem], Run]:
        """Called by a runner around its read of the history; ``read`` comes back to `get_items`."""
        run = Run(self._key)
        with recording(run):
            items = await read()
        self._last_run = run
        return items, run

    async def _add_items_with_generation(
        self, write: Callable[[], Awaitable[None]], *, expected_generation: object
    ) -> Run:
        """Called by a runner around each of its appends; ``write`` comes back to `add_items`."""
        run = run_of(expected_generation, self._key)
        with recording(run):
            await write()
        self._last_run = run
        return run

    async def _defer_compaction(self, response_id: str, store: bool | None = None) -> None:
        """Called by a runner instead of `run_compaction` while tool outputs are still to be answered."""
        behind = self._last_run  # the caller's: it appended just now, and has not waited since
        if self._compactor is None or self._get_deferred_compaction_response_id() is not None:
            return
        if _is_switched_off():
            return
        try:
            await self._run(response=(response_id, store), behind=behind).defer()
        except Exception as error:  # noqa: BLE001  # the turn is stored; the next one will ask again
            events.logger.warning("session %r: the compaction was not deferred: %s", self.session_id, error)

    def _get_deferred_compaction_response_id(self) -> str | None:
        """Asked by a runner without await: what the last read or write of this object saw."""
        return self._chain.chain.deferred_id

    async def _get_compaction_snapshot(self, limit: int, *, prune_prefix: object = None) -> NoReturn:
        """Asked by openai-agents' own compaction session, before it pays.

        Raises:
            ConfigurationError: Always: it replaces without a version, so that appends of others are lost and
                a clear is undone.
        """
        raise ConfigurationError(_WRAPPED)

    async def _atomic_replace_items(self, items: list[TResponseInputItem]) -> NoReturn:
        """Asked by openai-agents' own compaction session where it replaces all; as above."""
        raise ConfigurationError(_WRAPPED)

    # -- inside

    def _default_limit(self) -> int | None:
        settings = self.session_settings
        return settings.get("limit") if isinstance(settings, dict) else getattr(settings, "limit", None)

    def _run(
        self,
        *,
        force: bool = False,
        mode: Mode | None = None,
        response: tuple[str, bool | None] | None = None,
        behind: Run | None = None,
        wrapper: Any = None,
    ) -> CompactionRun:
        if self._compactor is None:
            raise ConfigurationError(
                f"session {self.session_id!r} has no compactor: give one to the store or to store.session()"
            )
        chosen: Mode = mode if mode is not None else getattr(self._compactor, "mode", "input")
        if chosen not in MODES:
            raise ValueError(f"mode is one of {MODES}, not {chosen!r}")

        state = behind.state if behind is not None else self._chain

        def landed(result: Landed) -> None:
            self._chain.wrote(result)
            if behind is not None:
                behind.state.wrote(result)
            tell_landed(wrapper)

        return CompactionRun(
            self._backend,
            self.session_id,
            compactor=self._compactor,
            policy=self._policy,
            state=replace(state) if self._policy.background else state,
            force=force,
            mode=chosen,
            response=response,
            used_tokens=used_tokens(wrapper),
            withheld=withheld_from(wrapper, behind),
            hooks=Hooks(landed=landed, paid=lambda usage: add_usage(wrapper, usage)),
            policies=self._retry,
        )

    def _log_refusal(self, report: CompactionReport, behind: Run | None) -> None:
        """What a person has to decide on, once a run or once for this object."""
        if report.status == "withheld" and not (behind is not None and behind.told):
            events.logger.info("session %r: not compacted: %s", self.session_id, report.error)
            if behind is not None:
                behind.told = True
        elif report.error == ENVELOPES and not self._told_envelopes:
            events.logger.warning("session %r: not compacted: %s", self.session_id, report.error)
            self._told_envelopes = True


_WRAPPED = (
    "a CasSession cannot be wrapped in OpenAIResponsesCompactionSession, which replaces without a version: "
    "give the session itself to the runner, made with "
    "store.session(..., compactor=ResponsesCompactor(model=...)); nothing was replaced"
)


def _is_switched_off() -> bool:
    return os.environ.get("CAS_SESSION_COMPACTION", "").lower() == "off"


def _response(response_id: str | None, stored: bool | None) -> tuple[str, bool | None] | None:
    return (response_id, stored) if response_id else None
