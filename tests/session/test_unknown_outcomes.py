"""A write that may have landed is sent again with its op_id: it lands once, and says what it did then."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from cas_session import (
    CasSession,
    ConfigurationError,
    SessionStore,
    StorageUnavailableError,
    Version,
    VersionConflictError,
    WriteOutcomeUnknownError,
)
from cas_session.events import Event, WriteAttempt
from tests.session.items import said, texts_of
from tests.session.stores import (
    Around,
    Patched,
    first,
    lose_answer,
    lose_request,
    patched_store,
    refuse,
)


@dataclass(frozen=True)
class Write:
    """One kind of write on a session that holds "one" and "two" at version 2."""

    verb: str
    send: Callable[[CasSession], Awaitable[Any]]
    left: list[str]


WRITES = {
    "append": Write("append", lambda s: s.append(said("three")), ["one", "two", "three"]),
    "conditional append": Write(
        "append", lambda s: s.append(said("three"), expected_version=2), ["one", "two", "three"]
    ),
    "pop": Write("pop", lambda s: s.pop(), ["one"]),
    "conditional pop": Write("pop", lambda s: s.pop(expected_version=2), ["one"]),
    "clear": Write("clear", lambda s: s.clear(), []),
    "conditional clear": Write("clear", lambda s: s.clear(expected_version=2), []),
    "delete": Write("clear", lambda s: s.delete(), []),
    "replace": Write("replace", lambda s: s.replace(said("new"), expected_version=2), ["new"]),
    "restore": Write("restore", lambda s: s.restore(1, expected_version=2), ["one"]),
    "update": Write("replace", lambda s: s.update(lambda _: said("new")), ["new"]),
}


@pytest.fixture(params=WRITES.values(), ids=WRITES.keys())
def write(request: pytest.FixtureRequest) -> Write:
    return request.param  # type: ignore[no-any-return]


async def begun(store: SessionStore) -> CasSession:
    session = store.session("s")
    await session.append(said("one"))
    await session.append(said("two"))
    return session


def version_of(result: Any) -> Version:
    if isinstance(result, tuple):
        return result[1]  # type: ignore[no-any-return]
    return getattr(result, "version", result)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "losses",
    [(lose_answer,), (lose_request,), (lose_request, lose_answer), (lose_answer, refuse, lose_request)],
    ids=["the answer", "the request", "the request, then the answer", "the answer, then contact"],
)
async def test_a_write_whose_answer_or_request_is_lost_lands_once(
    patched: Patched, write: Write, losses: tuple[Around, ...]
) -> None:
    session = await begun(patched.store)
    patched.driver.around(write.verb, *losses)
    patched.driver.called.clear()

    result = await write.send(session)
    sent = patched.driver.sent(write.verb)
    snapshot = await session.snapshot()
    operations = await session.operations()

    sendings = [one[0] if isinstance(one, list) else one for one in sent]
    assert version_of(result) == 3
    assert version_of(result).nonce == snapshot.version.nonce
    assert snapshot.version == 3
    assert texts_of(snapshot.items) == write.left
    assert len(operations) == 3
    assert len(sendings) == len(losses) + 1
    assert len({sending.op_id for sending in sendings}) == 1
    assert len({sending.nonce for sending in sendings}) == len(sendings)
    assert [sending.fenced for sending in sendings] == [False] + [True] * len(losses)


async def test_a_pop_whose_answer_is_lost_returns_the_item_that_it_took(patched: Patched) -> None:
    session = await begun(patched.store)
    patched.driver.around("pop", lose_answer)

    item, version = await session.pop()

    assert (item, version) == (said("two")[0], 3)


async def test_the_first_result_is_returned_also_when_others_wrote_meanwhile(
    patched: Patched, other: SessionStore, write: Write
) -> None:
    session = await begun(patched.store)
    foreign = other.session("s")
    patched.driver.around(write.verb, lose_answer, first(lambda: foreign.append(said("foreign"))))

    result = await write.send(session)

    assert version_of(result) == 3
    assert texts_of((await session.snapshot()).items) == [*write.left, "foreign"]


async def test_a_re_sent_conditional_write_that_did_not_land_still_conflicts(
    patched: Patched, other: SessionStore
) -> None:
    """The fence is no way around the version."""
    session = await begun(patched.store)
    foreign = other.session("s")
    patched.driver.around("replace", lose_request, first(lambda: foreign.append(said("foreign"))))

    with pytest.raises(VersionConflictError) as caught:
        await session.replace(said("new"), expected_version=2)

    assert (caught.value.actual, caught.value.change) == (3, "appended")
    assert texts_of((await session.snapshot()).items) == ["one", "two", "foreign"]


async def test_a_re_sent_append_does_not_land_behind_a_clear_a_second_time(
    patched: Patched, other: SessionStore
) -> None:
    session = await begun(patched.store)
    foreign = other.session("s")
    patched.driver.around("append", lose_answer, first(foreign.clear))

    version = await session.append(said("three"))

    assert version == 3
    assert (await session.snapshot()).items == []


async def test_a_spent_outcome_budget_says_unknown_and_the_op_id(patched: Patched, write: Write) -> None:
    """Five sendings; the same write under that op_id is then the way to know."""
    session = await begun(patched.store)
    patched.driver.around(write.verb, *[lose_answer] * 5)
    patched.driver.called.clear()

    with pytest.raises(WriteOutcomeUnknownError) as caught:
        await write.send(session)

    sent = patched.driver.sent(write.verb)
    sendings = [one[0] if isinstance(one, list) else one for one in sent]
    assert len(sendings) == 5
    assert caught.value.op_id == sendings[0].op_id
    assert any("5 attempts" in note for note in caught.value.__notes__)
    assert texts_of((await session.snapshot()).items) == write.left


async def test_unavailable_after_an_unknown_stays_unknown(patched: Patched) -> None:
    """That the last sending did not land says nothing about the first."""
    session = await begun(patched.store)
    patched.driver.around("append", lose_answer, *[refuse] * 20)

    with pytest.raises(WriteOutcomeUnknownError) as caught:
        await session.append(said("three"))
    again = await patched.store.session("s").append(said("three"), op_id=caught.value.op_id)

    assert again == 3
    assert texts_of((await session.snapshot()).items) == ["one", "two", "three"]


async def test_a_refused_login_after_an_unknown_stays_unknown(patched: Patched) -> None:
    """The first sending may have landed: nobody may take the second one's refusal for its outcome."""

    async def refuse_login(verb: Around, *args: Any) -> Any:
        raise ConfigurationError("no login any more")

    patched.driver.around("clear", lose_answer, *[refuse_login] * 5)

    with pytest.raises(WriteOutcomeUnknownError) as told:
        await patched.store.session("s").clear()

    assert told.value.op_id == patched.driver.sent("clear")[0].op_id
    assert isinstance(told.value.__cause__, ConfigurationError)


async def test_what_surely_did_not_land_is_sent_again_with_its_first_expectations(
    patched: Patched, write: Write
) -> None:
    session = await begun(patched.store)
    patched.driver.around(write.verb, refuse, refuse)
    patched.driver.called.clear()

    result = await write.send(session)

    assert version_of(result) == 3
    assert len(patched.driver.sent(write.verb)) == 3
    assert len(patched.time.slept) == 2
    assert texts_of((await session.snapshot()).items) == write.left


async def test_a_spent_transient_budget_says_that_nothing_landed(patched: Patched) -> None:
    session = await begun(patched.store)
    patched.driver.around("clear", *[refuse] * 8)
    patched.driver.called.clear()

    with pytest.raises(StorageUnavailableError) as caught:
        await session.clear()

    assert len(patched.driver.sent("clear")) == 8
    assert any("8 attempts" in note for note in caught.value.__notes__)
    assert texts_of((await session.snapshot()).items) == ["one", "two"]


async def test_a_blind_append_is_tried_for_as_long_as_a_call_may_take(database_url: str) -> None:
    """It is always right, so its budget is time and no count."""
    async with patched_store(database_url, call_timeout_s=30) as patched:
        session = patched.store.session("s")
        patched.driver.around("append", *[refuse] * 20)

        version = await session.append(said("one"))
        patched.driver.around("append", *[refuse] * 1000)
        with pytest.raises(StorageUnavailableError):
            await session.append(said("two"))

    assert version == 1
    assert sum(patched.time.slept[20:]) <= 30


async def test_a_failure_that_somebody_must_mend_is_not_tried_again(patched: Patched) -> None:
    session = await begun(patched.store)

    async def full(verb: Around, *args: Any) -> Any:
        raise StorageUnavailableError("the disk is full", transient=False)

    patched.driver.around("clear", full)
    patched.driver.called.clear()
    with pytest.raises(StorageUnavailableError, match="full"):
        await session.clear()

    assert len(patched.driver.sent("clear")) == 1
    assert patched.time.slept == []


async def test_a_hook_hears_of_every_sending(database_url: str) -> None:
    heard: list[Event] = []
    async with patched_store(database_url, on_event=heard.append) as patched:
        session = await begun(patched.store)
        heard.clear()
        patched.driver.around("append", refuse, lose_answer)
        await session.append(said("three"))
        (op, *_) = await session.operations(limit=1)
        with pytest.raises(VersionConflictError):
            await session.append(said("four"), expected_version=1)

    *sendings, refused = [event for event in heard if isinstance(event, WriteAttempt)]
    assert [(event.attempt, event.outcome, event.kind) for event in sendings] == [
        (1, "not_landed", "append"),
        (2, "unknown", "append"),
        (3, "landed", "append"),
    ]
    assert {event.op_id for event in sendings} == {op.op_id}
    assert sendings[-1].error is None
    assert (refused.attempt, refused.outcome) == (1, "refused")
    assert isinstance(refused.error, VersionConflictError)


async def test_a_hook_that_fails_does_not_fail_the_write(database_url: str) -> None:
    def broken(_: Event) -> None:
        raise RuntimeError("a hook must not matter")

    async with patched_store(database_url, on_event=broken) as patched:
        session = await begun(patched.store)
        patched.driver.around("append", lose_answer)

        assert await session.append(said("three")) == 3
