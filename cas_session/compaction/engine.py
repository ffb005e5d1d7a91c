"""One compaction: plan, lease, call, judge, replace, finish; again from the current state within the budget.

Nothing is held while the model is asked. Correctness rests on the replace alone, which names the epoch and
the planned version; the lease only saves money.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeVar, get_args

from cas_session import codec, events
from cas_session.backend import Backend
from cas_session.compaction.chain import ChainState, current
from cas_session.compaction.cooldown import ATTEMPTS_READ, resting_until
from cas_session.compaction.cuts import NoCut
from cas_session.compaction.output import OutputRejected, holds_envelope, normalise_output
from cas_session.compaction.plan import Plan, plan_chain, plan_input
from cas_session.compaction.policy import CompactionPolicy, TriggerContext
from cas_session.compaction.report import CompactionReport, Status
from cas_session.compaction.shrink import shorten
from cas_session.compactors.base import Compacted, CompactionRequest, Compactor
from cas_session.driver import BeginCompaction, Driver, FinishCompaction, Landed, Load, Loaded, Replace
from cas_session.drivers.settle import settle
from cas_session.errors import CasSessionError, CompactorError, VersionConflictError
from cas_session.retry import RetryPolicies, RetryPolicy, retry
from cas_session.snapshot import Item
from cas_session.writes import digest, new_nonce

ERROR_CHARS = 2000  # of an error's text that are recorded
ENVELOPES = (
    "the items are encrypted by a session that wraps this one, and no model can read them: give this session "
    "no compactor, or store plain items and let the database encrypt them"
)
WITHHELD = (
    "an input filter kept stored items from the run's model, so that nothing was sent: "
    "CompactionPolicy(scope='history') compacts them all the same"
)
AT_ONCE = RetryPolicy(max_attempts=8, wait_initial_s=0, wait_max_s=0)

T = TypeVar("T")
Mode = Literal["auto", "input", "previous_response_id"]
MODES: tuple[Mode, ...] = get_args(Mode)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """Told at once, before a cancellation goes on.

    Attributes:
        landed: A replace landed.
        paid: A model call was answered; its usage.
    """

    landed: Callable[[Landed], None] = lambda landed: None
    paid: Callable[[Mapping[str, Any]], None] = lambda usage: None


class _Stop(Exception):
    """This compaction ends here."""

    def __init__(self, status: Status, error: str | None = None, *, blockers: tuple[int, ...] = ()) -> None:
        super().__init__(status)
        self.status: Status = status
        self.error = error
        self.blockers = blockers


class _Misuse(ValueError):
    """The caller's mistake, and not a fault in an answer."""


class _Moved(Exception):
    """Nothing was paid: plan again."""

    def __init__(self) -> None:
        super().__init__("the session was rewritten between plan and lease")


class CompactionRun:
    """One compaction of one session.

    Args:
        backend: The open database.
        session_id: The session.
        compactor: Folds the history.
        policy: When, how much, and what to do about writes that came between.
        state: What the session object knows of the chain.
        force: Ignore trigger and min_savings for the first plan.
        mode: How the model may get the history.
        response: The provider's response that ends the history as the object knows it, and whether it was
            stored; None if the caller named none.
        used_tokens: Of the run's last request and answer; None if not known.
        withheld: Whether an input filter kept items of a history of so many items from the run's model.
        hooks: Who is told.
        policies: The session's retry budgets.
    """

    def __init__(
        self,
        backend: Backend,
        session_id: str,
        *,
        compactor: Compactor,
        policy: CompactionPolicy,
        state: ChainState,
        force: bool = False,
        mode: Mode = "auto",
        response: tuple[str, bool | None] | None = None,
        used_tokens: int | None = None,
        withheld: Callable[[int], bool] = lambda item_count: False,
        hooks: Hooks = Hooks(),  # frozen
        policies: RetryPolicies | None = None,
    ) -> None:
        self._backend = backend
        self._session_id = session_id
        self._compactor = compactor
        self._policy = policy
        self._state = state
        self._force = force
        self._mode: Mode = mode
        self._response = response
        self._has_response = response is not None
        self._used_tokens = used_tokens
        self._withheld = withheld
        self._hooks = hooks
        self._policies = policies
        self._attempt_id = secrets.token_hex(16)
        self._leased = False
        self._again = False
        self._calls = 0
        self._answer: Compacted | None = None
        self._overflow: CompactorError | None = None
        self._report = CompactionReport(session_id=session_id, status="failed")
        self._started = backend.timing.clock()

    async def run(self) -> CompactionReport:
        """Compact, or say why not.

        Raises:
            ValueError: previous_response_id mode, and no usable response is known.
            CasSessionError: A failure, if the policy's on_error is ``raise``.
        """
        try:
            await self._record()
            await retry(self._attempt, self._budget_of, timing=self._backend.timing)
        except asyncio.CancelledError:
            if not self._report.landed:
                await settle(self._finish("cancelled"))
            raise asyncio.CancelledError from None  # not the unit's own, which asyncio.timeout does not know
        except _Stop as stop:
            await self._finish(stop.status, stop.error, blockers=stop.blockers)
        except (VersionConflictError, _Moved) as error:
            await self._finish("conflict", str(error))
        except CasSessionError as error:
            unsupported = isinstance(error, CompactorError) and error.kind == "unsupported"
            await self._finish("unsupported" if unsupported else "failed", _words(error))
            if self._policy.on_error == "raise":
                raise
        except _Misuse:
            raise
        except Exception as error:  # a fault of ours, or in an answer, must not end a turn that is stored
            events.logger.exception("session %r: the compaction failed", self._session_id)
            await self._finish("failed", _words(error))
            if self._policy.on_error == "raise":
                raise
        return self._report

    async def run_unattended(self) -> CompactionReport:
        """Compact with nobody to wait for it: what goes wrong is told as an event only."""
        try:
            await self.run()
        except CasSessionError:
            pass  # told already, and raised for a caller that is not there
        except Exception as error:  # noqa: BLE001  # nobody would take it
            await self._finish("failed", _words(error))
        return self._report

    async def defer(self) -> None:
        """Mark that a compaction is owed, if one is due: the response's tool outputs are yet to be answered.

        The response itself is not recorded: it does not know the outputs.
        """
        loaded = await self._load()
        items = codec.decode(self._session_id, loaded.rows)
        if self._response is None or holds_envelope(items) or not self._is_due(loaded, items):
            return
        marked = self._state.marked(self._response[0], loaded)
        if await self._tell(lambda driver: driver.record_chain(self._session_id, marked)):
            self._state.chain = marked

    async def plan(self) -> Plan | CompactionReport:
        """What `run` would do now: the plan, or the report that it would end with. Nothing is written."""
        try:
            return self._plan_from(await self._load())
        except _Stop as stop:
            return replace(self._report, status=stop.status, error=stop.error, blockers=stop.blockers)

    async def _attempt(self) -> None:
        plan = self._plan_from(await self._load())
        await self._rest()
        await self._take_lease(plan)
        texts = self._judge(plan, await self._ask(plan))
        # Replace, tell, finish: one unit, so that a cancellation finds it done or not begun.
        await settle(self._land(plan, texts))

    # -- plan

    async def _record(self) -> None:
        """Write the response that the caller named into the session row, if it may stand for the history."""
        if self._response is None:
            return
        response_id, stored = self._response
        explicit = self._mode == "previous_response_id"
        loaded = await self._backend.load(Load(self._session_id, 0), self._policies)
        if self._withheld(loaded.manifest.item_count):
            if explicit:
                raise _Stop("withheld", WITHHELD)
            return
        chain = self._state.to_record(response_id, stored, loaded)
        why = "its run did not read the whole history here"
        if chain is not None:
            if response_id != self._state.void_id and await self._tell(
                lambda driver: driver.record_chain(self._session_id, chain)
            ):
                self._state.chain = chain
                return
            self._state.void_id = response_id
            self._state.acknowledge(loaded)
            why = "the session was rewritten after it was begun"
        if explicit:
            raise _Stop("conflict", f"response {response_id} cannot stand for the history: {why}")

    async def _load(self) -> Loaded:
        loaded = await self._backend.load(Load(self._session_id, ages=True), self._policies)
        manifest = loaded.manifest
        self._report = replace(
            self._report,
            version_before=manifest.version,
            version_after=manifest.version,
            items_before=manifest.item_count,
            items_after=manifest.item_count,
            bytes_before=manifest.byte_count,
            bytes_after=manifest.byte_count,
        )
        return loaded

    def _plan_from(self, loaded: Loaded) -> Plan:
        items = codec.decode(self._session_id, loaded.rows)
        if holds_envelope(items):
            raise _Stop("unsupported", ENVELOPES)
        chain = current(loaded)
        explicit = self._mode == "previous_response_id"
        if explicit and chain.response_id is None:
            self._state.acknowledge(loaded)
            if self._has_response:
                raise _Stop("conflict", "the session was rewritten after the response was recorded")
            raise _Misuse(
                "compaction in previous_response_id mode requires a response_id of the history as it is now: "
                "none was given since the session was last rewritten"
            )
        self._has_response = chain.response_id is not None
        if not self._force and not self._is_due(loaded, items):
            raise _Stop("no_longer_needed" if self._again else "below_threshold")
        withheld = self._withheld(len(items))
        if withheld and (explicit or self._policy.scope == "seen"):
            raise _Stop("withheld", WITHHELD)
        followable = chain.response_id is not None and chain.stored is not False
        if explicit and followable:
            return self._ready(plan_chain(loaded, items, chain))
        plan = self._ready(_users_own(lambda: plan_input(loaded, items, self._policy, datetime.now(UTC))))
        complete = not withheld and self._state.covers_all(loaded)
        if followable and self._mode == "auto" and not plan.kept and complete:
            by_chain = plan_chain(loaded, items, chain)
            if isinstance(by_chain, Plan) and by_chain.prefix == plan.prefix:
                return by_chain
        return plan

    def _is_due(self, loaded: Loaded, items: list[Item]) -> bool:
        context = TriggerContext(
            self._session_id,
            items,
            loaded.manifest.byte_count,
            current(loaded).response_id,
            None if self._again else self._used_tokens,  # a rewrite made them another history's
        )
        return _users_own(lambda: self._policy.trigger(context))

    def _ready(self, plan: Plan | NoCut) -> Plan:
        if isinstance(plan, NoCut):
            again = self._again and plan.status == "nothing_to_compact"
            raise _Stop("no_longer_needed" if again else plan.status, blockers=plan.blockers)
        self._report = replace(self._report, dead=plan.cut.dead, unknown=plan.unknown)
        return plan

    # -- pay

    async def _rest(self) -> None:
        """Leave the model alone after an attempt: a failing provider is not asked at each turn."""
        if self._force or self._leased:
            return
        attempts = await self._tell(lambda driver: driver.compactions(self._session_id, limit=ATTEMPTS_READ))
        until = resting_until(attempts, self._policy)
        if until is not None and datetime.now(UTC) < until:
            raise _Stop("cooldown", f"the last attempt was {attempts[0].decision}; resting until {until}")

    async def _take_lease(self, plan: Plan) -> None:
        lease = timedelta(seconds=self._policy.lease_s)
        if self._leased:
            if not await self._tell(lambda driver: driver.renew_compaction(self._attempt_id, lease)):
                raise _Stop("lease_held", "another worker took the lease over")
            return
        begin = BeginCompaction(
            attempt_id=self._attempt_id,
            session_id=self._session_id,
            owner=self._backend.worker,
            lease=lease,
            trigger="forced" if self._force else "policy",
            source=plan.manifest,
            last_seq=plan.manifest.next_seq - 1,
            item_count=plan.prefix.item_count,
            digest=codec.digest(plan.replaced, key=self._attempt_id),
            model=_name(getattr(self._compactor, "model", None)),
        )
        # Before the answer, for a cancellation takes the answer and leaves the lease.
        self._leased = True
        answer = await self._tell(lambda driver: driver.begin_compaction(begin))
        self._leased = answer == "started"
        if answer == "held":
            raise _Stop("lease_held", "another worker is compacting this session")
        if answer == "moved":
            raise _Moved
        self._report = replace(self._report, attempt_id=self._attempt_id)

    async def _ask(self, plan: Plan) -> Compacted:
        items = plan.send if self._overflow is None else self._shortened(plan.send, self._overflow)
        self._calls += 1
        self._report = replace(self._report, model_calls=self._calls, mode=plan.mode)
        request = CompactionRequest(
            session_id=self._session_id,
            mode=plan.mode,
            items=items,
            previous_response_id=plan.response_id,
            deadline_s=self._policy.deadline_s,
        )
        try:
            async with asyncio.timeout(self._policy.deadline_s):
                answer = await self._compactor.compact(request)
        except CompactorError as error:
            self._count(error.usage)
            raise
        except CasSessionError:
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise CompactorError("the compactor was cancelled, and nobody cancelled its caller") from error
        except TimeoutError as error:
            raise CompactorError(f"no answer within deadline_s={self._policy.deadline_s}") from error
        except Exception as error:  # a compactor is anybody's code; what it raises must not end a turn
            raise CompactorError(_words(error)) from error
        self._answer = answer if isinstance(answer, Compacted) else Compacted(output=answer)
        self._count(self._answer.usage)
        return self._answer

    def _shortened(self, items: list[Item], overflow: CompactorError) -> list[Item]:
        """Half of what was too much, in the request only, if tool outputs can be shortened."""
        short = shorten(items, codec.encode(items).size // 2)
        if short == items:
            why = f"{overflow}; there is no large tool output to shorten"
            raise CompactorError(why, kind="too_large", status=overflow.status) from overflow
        return short

    def _count(self, usage: Mapping[str, Any]) -> None:
        total = dict(self._report.usage)
        for name, tokens in usage.items():
            if isinstance(tokens, int) and not isinstance(tokens, bool):
                total[name] = total.get(name, 0) + tokens
        self._report = replace(self._report, usage=total)
        self._hooks.paid(usage)

    # -- judge and replace

    def _judge(self, plan: Plan, answer: Compacted) -> codec.Encoded:
        """The new items, encoded: the output, then what the prefix keeps."""
        try:
            output = codec.encode(normalise_output(answer.output))
        except OutputRejected as error:
            if error.reason == "empty_output":
                raise _Stop("empty_output", str(error)) from error
            raise CompactorError(f"the answer cannot be stored: {error}") from error
        texts = (*output.texts, *plan.kept)
        sizes = codec.sizes_of(texts)
        allowed = plan.prefix.byte_count * (1 - self._policy.min_savings)
        if not self._force and sum(sizes) > allowed:
            raise _Stop("not_smaller", f"{sum(sizes)} bytes for {plan.prefix.byte_count}")
        return codec.Encoded(texts, sizes)

    async def _land(self, plan: Plan, new: codec.Encoded) -> None:
        op_id = f"compact-{self._attempt_id}-{self._calls}"
        write = Replace(
            session_id=self._session_id,
            op_id=op_id,
            nonce=new_nonce(),
            digest=digest("compact", op_id, new.texts),
            expected=None if self._policy.on_append == "rebase" else plan.manifest.version,
            worker=self._backend.worker,
            texts=new.texts,
            sizes=new.sizes,
            prefix=plan.prefix,
        )
        landed = await self._backend.write(
            "compact", write, lambda driver, sending: driver.replace(sending), self._policies
        )
        self._hooks.landed(landed)
        after = landed.manifest
        behind = after.item_count - len(new.texts)  # what the replace left in place
        appended = behind - (plan.manifest.item_count - plan.prefix.item_count)
        self._report = replace(
            self._report,
            version_after=after.version,
            items_after=after.item_count,
            bytes_after=after.byte_count,
            appended_during=appended,
        )
        await self._finish("rebased" if appended else "applied", new=new, landed=landed)

    # -- again, or the end

    def _budget_of(self, error: Exception) -> RetryPolicy | None:
        """Whether this failure is worth another plan, and after which wait."""
        if isinstance(error, _Moved):
            self._again, self._force = True, False  # what was forced is gone with the rewrite
            return AT_ONCE
        if self._calls >= self._policy.max_model_calls or self._has_spent_its_tokens():
            return None
        if isinstance(error, VersionConflictError):
            appended = error.change == "appended"
            if (self._policy.on_append if appended else self._policy.on_rewrite) != "retry":
                return None
            # What was planned and forced is gone with a rewrite: the new state must earn its call.
            self._again, self._force = not appended, self._force and appended
            self._mode = "input"
            return AT_ONCE
        if not isinstance(error, CompactorError):
            return None
        if error.kind == "no_chain" and self._mode == "auto":
            self._mode = "input"
            return AT_ONCE
        if error.kind == "too_large" and self._overflow is None and self._mode != "previous_response_id":
            self._overflow, self._mode = error, "input"
            return AT_ONCE
        if error.kind != "retryable":
            return None
        wait_s = error.retry_after_s
        if wait_s is None:
            return self._policy.model_retry
        if wait_s > self._policy.deadline_s:
            return None
        return replace(self._policy.model_retry, wait_initial_s=wait_s, wait_max_s=wait_s, jitter=False)

    def _has_spent_its_tokens(self) -> bool:
        usage, most = self._report.usage, self._policy.max_model_tokens
        total = usage.get("total_tokens", usage.get("input_tokens", 0) + usage.get("output_tokens", 0))
        return most is not None and total >= most

    async def _finish(
        self,
        status: Status,
        error: str | None = None,
        *,
        blockers: tuple[int, ...] = (),
        new: codec.Encoded | None = None,
        landed: Landed | None = None,
    ) -> None:
        """Complete the report and the attempt's row, which is a record: failing to write it fails nothing."""
        self._report = replace(
            self._report,
            status=status,
            error=error,
            blockers=blockers,
            duration_s=self._backend.timing.clock() - self._started,
        )
        if self._leased:
            answer = self._answer
            finish = FinishCompaction(
                attempt_id=self._attempt_id,
                decision=status,
                output_items=len(new.texts) if new else None,
                output_digest=codec.digest(new.texts, key=self._attempt_id) if new else None,
                found_version=landed.found_version if landed else None,
                target_version=landed.manifest.version if landed else None,
                appended_during=self._report.appended_during if landed else None,
                model=_name(answer.model) if answer else None,
                host=_name(answer.host) if answer else None,
                response_id=_name(answer.response_id) if answer else None,
                usage=json.dumps(self._report.usage) if self._report.usage else None,
                error=_storable(error),
            )
            try:
                await self._tell(lambda driver: driver.finish_compaction(finish))
            except CasSessionError as failure:
                events.logger.warning("compaction %s was not recorded: %s", self._attempt_id, failure)
        events.publish(self._backend.hook, events.CompactionFinished(self._report))

    async def _tell(self, verb: Callable[[Driver], Awaitable[T]]) -> T:
        return await self._backend.call(verb, self._policies)


def _users_own(call: Callable[[], T]) -> T:
    """Call what the user's policy brings; what it raises ends the compaction and not the turn."""
    try:
        return call()
    except Exception as error:
        raise CompactorError(f"the compaction policy failed: {_words(error)}") from error


def _words(error: BaseException) -> str:
    return str(error) if isinstance(error, CasSessionError) else f"{type(error).__name__}: {error}"


def _name(given: object) -> str | None:
    """What a compactor or an answer names, for the record; any object may be there."""
    return _storable(given) if isinstance(given, str) else None


def _storable(text: str | None) -> str | None:
    """Any text in a form that both databases take."""
    if text is None:
        return None
    return text[:ERROR_CHARS].replace("\0", "\\0").encode(errors="backslashreplace").decode()
