"""What the model answers, or fails to: a bad answer leaves the history as it was and fails nobody's turn."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import pytest

from cas_session import CasSession, CompactionPolicy, CompactionReport, CompactorError, RetryPolicy
from cas_session.compactors import CompactionRequest
from cas_session.compactors.base import Compacted
from cas_session.events import CompactionFinished, Event
from cas_session.testing.endpoint import Fault
from tests.compaction.scene import MODEL, Scene
from tests.conformance.database import Database
from tests.session.items import said, turns
from tests.session.stores import Patched, patched_store


@dataclass(frozen=True)
class Bad:
    """An answer, what is reported, a word of the error, and how many calls are made."""

    fault: Fault
    status: str
    word: str
    calls: int = 1


ANSWERS = {
    "an empty list": Bad(Fault.output([]), "empty_output", "empty list"),
    "null": Bad(Fault.output(None), "empty_output", "NoneType"),
    "no output at all": Bad(Fault.empty_object(), "empty_output", "NoneType"),
    "a text": Bad(Fault.output("summary"), "empty_output", "str"),
    "an object": Bad(Fault.output({"type": "message"}), "empty_output", "list"),
    "a list of texts": Bad(Fault.output(["one", "two"]), "empty_output", "no object"),
    "a list with null": Bad(Fault.output([None]), "empty_output", "no object"),
    "an orphaned output": Bad(
        Fault.output([{"type": "function_call_output", "call_id": "c", "output": "x"}]), "failed", "stored"
    ),
    "more than there was": Bad(
        Fault.output([{"type": "compaction", "id": "cmp_1", "encrypted_content": "x" * 9000}]),
        "not_smaller",
        "bytes",
    ),
    "HTTP 500": Bad(Fault.server_error(), "failed", "500", calls=2),
    "HTTP 429": Bad(Fault.rate_limited(), "failed", "429", calls=2),
    "HTTP 429 with a long wait": Bad(Fault.rate_limited(retry_after_s=3600), "failed", "429"),
    "HTTP 400": Bad(Fault.error(400), "failed", "400"),
    "HTTP 401": Bad(Fault.error(401), "failed", "401"),
    "HTTP 404": Bad(Fault.not_found(), "unsupported", "404"),
    "HTTP 405": Bad(Fault.not_allowed(), "unsupported", "405"),
    "garbage": Bad(Fault.not_json(), "failed", "JSON", calls=2),
    "a truncated answer": Bad(Fault.truncated(), "failed", "", calls=2),
    "a reset": Bad(Fault.reset(), "failed", "onnection", calls=2),
    "a reset after the work": Bad(Fault.reset(billed=True), "failed", "onnection", calls=2),
}


@pytest.fixture(params=ANSWERS.values(), ids=ANSWERS.keys())
def bad(request: pytest.FixtureRequest) -> Bad:
    return request.param  # type: ignore[no-any-return]


async def begun(scene: Scene, patched: Patched, policy: CompactionPolicy | None = None) -> CasSession:
    session = scene.session(policy, store=patched.store)
    await session.append(turns(12))
    return session


async def test_a_bad_answer_leaves_the_history_as_it_was_and_says_which(
    scene: Scene, patched: Patched, bad: Bad
) -> None:
    session = await begun(scene, patched)
    scene.endpoint.fail_next(bad.fault, path="compact", times=bad.calls)

    report = await session.compact()
    snapshot = await session.snapshot()
    (row,) = await session.compactions()

    assert (report.status, report.landed, report.model_calls) == (bad.status, False, bad.calls)
    assert bad.word in (report.error or "")
    assert (report.version_before, report.version_after) == (1, 1)
    assert (snapshot.items, snapshot.version) == (turns(12), 1)
    assert (row.status, row.decision, row.target_version) == ("done", bad.status, None)
    assert bad.word in (row.error or "")
    assert len(scene.requests) == bad.calls


async def test_run_compaction_does_not_raise(database_url: str, scene: Scene, bad: Bad) -> None:
    """The turn is over and stored; the event tells."""
    heard: list[Event] = []
    async with patched_store(database_url, on_event=heard.append) as patched:
        session = await begun(scene, patched)
        scene.endpoint.fail_next(bad.fault, path="compact", times=bad.calls)
        done = await session.run_compaction({"response_id": "resp_1", "store": False})  # type: ignore[func-returns-value]
        assert done is None
        assert await session.append(said("next")) == 2

    (report,) = [event.report for event in heard if isinstance(event, CompactionFinished)]
    assert report.status == bad.status


@pytest.mark.parametrize("name", ["HTTP 500", "HTTP 404", "HTTP 400", "garbage"])
async def test_on_error_raise_raises_failures(scene: Scene, patched: Patched, name: str) -> None:
    bad = ANSWERS[name]
    session = await begun(scene, patched, CompactionPolicy(on_error="raise"))
    scene.endpoint.fail_next(bad.fault, path="compact", times=bad.calls)

    with pytest.raises(CompactorError, match=bad.word):
        await session.compact()

    assert (await session.snapshot()).items == turns(12)


@pytest.mark.parametrize("name", ["an empty list", "more than there was"])
async def test_an_answer_that_is_no_failure_is_not_raised(scene: Scene, patched: Patched, name: str) -> None:
    session = await begun(scene, patched, CompactionPolicy(on_error="raise"))
    scene.endpoint.fail_next(ANSWERS[name].fault, path="compact")

    report = await session.compact()

    assert report.status == ANSWERS[name].status


@pytest.mark.parametrize("name", ["HTTP 500", "HTTP 429", "garbage", "a truncated answer", "a reset"])
async def test_a_failure_worth_repeating_is_repeated(scene: Scene, patched: Patched, name: str) -> None:
    session = await begun(scene, patched)
    scene.endpoint.fail_next(ANSWERS[name].fault, path="compact")

    report = await session.compact()

    assert (report.status, report.model_calls, len(scene.requests)) == ("applied", 2, 2)
    assert len(patched.time.slept) == 1
    assert scene.stands_for((await session.snapshot()).items) == turns(12)


async def test_retry_after_is_honoured(scene: Scene, patched: Patched) -> None:
    session = await begun(scene, patched)
    scene.endpoint.fail_next(Fault.rate_limited(retry_after_s=7), path="compact")

    report = await session.compact()

    assert report.status == "applied"
    assert patched.time.slept == [7]


async def test_the_model_budget_bounds_the_calls_also_where_more_retries_are_allowed(
    scene: Scene, patched: Patched
) -> None:
    policy = CompactionPolicy(max_model_calls=3, model_retry=RetryPolicy(max_attempts=99, wait_initial_s=0))
    session = await begun(scene, patched, policy)
    scene.endpoint.fail_next(Fault.server_error(), path="compact", times=99)

    report = await session.compact()

    assert (report.model_calls, len(scene.requests)) == (3, 3)


async def test_no_answer_within_the_deadline_is_a_failure(scene: Scene, patched: Patched) -> None:
    policy = CompactionPolicy(deadline_s=0.2, lease_s=1)
    session = await begun(scene, patched, policy)
    scene.endpoint.fail_next(Fault.hang(), path="compact")
    started = time.monotonic()

    report = await session.compact()

    assert report.status == "failed"
    assert "deadline_s=0.2" in (report.error or "")
    assert time.monotonic() - started >= 0.2
    assert (await session.snapshot()).items == turns(12)


async def test_after_a_failure_the_next_turns_do_not_ask_again(scene: Scene, patched: Patched) -> None:
    """On no worker, for a time; who forces it asks."""
    session = await begun(scene, patched)
    scene.endpoint.fail_next(Fault.error(400), path="compact")
    await session.compact()

    same = await session.compact()
    foreign = await scene.session(store=scene.other).compact()
    requests = len(scene.requests)
    forced = await scene.session(store=scene.other).compact(force=True)

    assert (same.status, foreign.status, requests) == ("cooldown", "cooldown", 1)
    assert forced.status == "applied"


@pytest.mark.parametrize(
    "error", [RuntimeError("boom"), KeyError("x"), TimeoutError(), ValueError("\x00\ud800")]
)
async def test_whatever_a_compactor_raises_ends_in_the_report(scene: Scene, error: Exception) -> None:
    async def fail(request: CompactionRequest) -> list[dict[str, object]]:
        raise error

    session = scene.store.session("s", compactor=fail)
    await session.append(turns(12))

    report = await session.compact()
    (row,) = await session.compactions()

    assert (report.status, row.decision) == ("failed", "failed")
    assert row.error
    assert (await session.snapshot()).items == turns(12)


@pytest.mark.parametrize("error", [RuntimeError("boom"), ValueError("boom")])
async def test_an_answer_that_breaks_while_it_is_read_ends_in_the_report(
    scene: Scene, error: Exception
) -> None:
    """Such as a model of another SDK that does not validate; and no lease is left behind."""

    class Broken:
        def model_dump(self, **_: object) -> dict[str, object]:
            raise error

    async def compact(request: CompactionRequest) -> list[Any]:
        return [Broken()]

    session = scene.store.session("s", compactor=compact)
    await session.append(turns(12))

    report = await session.compact()
    (row,) = await session.compactions()

    assert (report.status, row.status, row.decision) == ("failed", "done", "failed")
    assert "boom" in (report.error or "")
    assert (await session.snapshot()).items == turns(12)


@pytest.mark.parametrize("where", ["trigger", "pinned"])
async def test_what_the_users_policy_raises_ends_in_the_report(scene: Scene, where: str) -> None:
    def fail(_: object) -> bool:
        raise LookupError("the user's own")

    session = scene.session(CompactionPolicy(**{where: fail}))  # type: ignore[arg-type]
    await session.append(turns(12))

    report = await session.compact()

    assert report.status == "failed"
    assert "the user's own" in (report.error or "")
    assert scene.requests == []


async def test_a_row_that_cannot_be_decoded_stops_a_compaction(scene: Scene) -> None:
    """It is named, and not skipped."""
    session = scene.session()
    await session.append(turns(12))
    await spoil(scene)

    report = await session.compact()

    assert report.status == "failed"
    assert "seq 3" in (report.error or "")
    assert scene.requests == []


async def spoil(scene: Scene) -> None:
    database = Database(scene.url)
    if database.is_sqlite:
        database._sqlite("UPDATE cas_session_item SET data = '{broken' WHERE seq = 3")
    else:
        await database._postgres("UPDATE cas_session_item SET data = '{broken' WHERE seq = 3")


async def test_an_envelope_of_a_wrapping_session_is_refused(scene: Scene) -> None:
    async def wrapped(request: CompactionRequest) -> list[dict[str, object]]:
        return [{"__enc__": 1, "payload": "x"}]

    session = scene.store.session("s", compactor=wrapped)
    await session.append(turns(12))

    report = await session.compact()

    assert report.status == "failed"
    assert (await session.snapshot()).items == turns(12)


async def test_a_good_answer_is_recorded_whole(scene: Scene) -> None:
    """What was read, what was paid, what was decided."""
    session = scene.session()
    version = await session.append(turns(12))

    report = await session.compact()
    (row,) = await session.compactions()
    (op, *_) = await session.operations()

    assert_recorded(report, scene)
    assert (row.status, row.decision, row.trigger, row.model) == ("done", "applied", "policy", MODEL)
    assert (row.source_version, row.source_nonce, row.source_epoch) == (version, version.nonce, 0)
    assert (row.source_items, row.source_last_seq) == (24, 24)
    assert (row.found_version, row.target_version, row.appended_during) == (1, 2, 0)
    assert row.output_items == 13
    assert row.source_digest is not None
    assert row.output_digest is not None
    assert row.host == "127.0.0.1"
    assert (row.response_id or "").startswith("resp_")
    assert row.usage is not None
    assert row.finished_at is not None
    assert row.started_at <= row.finished_at <= row.expires_at
    assert (row.attempt_id, row.error) == (report.attempt_id, None)
    assert op.kind == "compact"
    assert report.attempt_id in op.op_id  # type: ignore[operator]


def assert_recorded(report: CompactionReport, scene: Scene) -> None:
    assert (report.status, report.mode, report.model_calls) == ("applied", "input", 1)
    assert (report.version_before, report.version_after) == (1, 2)
    assert (report.items_before, report.items_after) == (24, 13)
    assert 0 < report.bytes_after < report.bytes_before
    assert report.usage["total_tokens"] > 0
    assert report.duration_s > 0
    assert report.error is None


async def test_a_compacted_history_is_valid_input_for_the_next_request(scene: Scene) -> None:
    """As strictly as the provider checks it; and the compaction can be compacted again."""
    session = scene.session()
    await session.append(turns(12))

    await session.compact()
    items = (await session.snapshot()).items
    response = await scene.client.responses.create(model=MODEL, input=[*items, *said("and then?")])  # type: ignore[list-item]
    await session.append(turns(12, start=12))
    again = await session.compact()

    assert response.output_text == "You said: and then?"
    assert again.status == "applied"
    assert scene.stands_for((await session.snapshot()).items) == turns(24)


async def test_what_was_replaced_can_be_restored(scene: Scene) -> None:
    session = scene.session()
    version = await session.append(turns(12))
    report = await session.compact()

    restored = await session.restore(version, expected_version=report.version_after)

    assert (await session.snapshot()).items == turns(12)
    assert restored == 3


@pytest.mark.parametrize(
    ("items", "status"),
    [
        ([], "below_threshold"),
        (turns(9), "below_threshold"),
        (said(*(str(number) for number in range(30))), "below_threshold"),
        ([*turns(9), {"role": "assistant", "content": "the tenth " * 30}], "applied"),
    ],
    ids=["nothing", "nine answers", "user messages only", "ten answers"],
)
async def test_the_default_trigger_counts_what_is_neither_user_message_nor_compaction(
    scene: Scene, items: list[dict[str, object]], status: str
) -> None:
    session = scene.session()
    await session.append(items)

    report = await session.compact()

    assert report.status == status
    assert len(scene.requests) == (status == "applied")
    assert report.attempt_id is not None or status != "applied"


async def test_what_an_earlier_compaction_wrote_is_nothing_to_compact(scene: Scene) -> None:
    session = scene.session()
    await session.append(turns(12))
    await session.compact()

    again = await session.compact(force=True)
    nothing = await scene.store.session("empty", compactor=session._compactor).compact(force=True)

    assert (again.status, nothing.status) == ("nothing_to_compact", "nothing_to_compact")
    assert len(scene.requests) == 1


async def test_a_dry_run_says_what_would_be_done_and_does_nothing(scene: Scene) -> None:
    session = scene.session()
    await session.append(turns(12))

    plan = await session.plan_compaction()
    version = await session.version()

    assert not isinstance(plan, CompactionReport)
    assert (plan.mode, plan.send, plan.kept) == ("input", turns(12), ())
    assert (version, scene.requests) == (1, [])
    assert await session.compactions() == []


@pytest.mark.parametrize(
    "name", ["gpt\0", "gpt\ud800", object()], ids=["NUL", "a lone surrogate", "an object"]
)
async def test_an_answer_may_name_itself_in_any_way(scene: Scene, name: Any) -> None:
    """What cannot be recorded must neither end the turn nor make a landed compaction a failed one."""

    class Named:
        model = name

        async def compact(self, request: CompactionRequest) -> Compacted:
            return Compacted(output=said("in short"), response_id=name, model=name, host=name)

    session = scene.store.session("s", compactor=Named())
    await session.append(turns(12))

    report = await session.compact()
    (row,) = await session.compactions()

    assert (report.status, row.decision, row.target_version) == ("applied", "applied", 2)
    assert (await session.snapshot()).items == said("in short")


async def test_a_compactor_that_is_cancelled_by_itself_cancels_nobody(scene: Scene) -> None:
    async def cancelled(request: CompactionRequest) -> Any:
        inner = asyncio.ensure_future(asyncio.Event().wait())
        inner.cancel()
        await inner

    session = scene.store.session("s", compactor=cancelled)
    await session.append(turns(12))

    report = await session.compact()

    assert (report.status, report.model_calls) == ("failed", 1)
    assert "cancelled" in str(report.error)
    assert await session.version() == 1
