"""Appends to one session that meet in one store leave as one statement, each with its own version."""

from __future__ import annotations

import asyncio

import pytest

from cas_session import CasSession, OperationMismatchError, StorageUnavailableError, Version
from cas_session.driver import GroupRefusedError
from cas_session.events import CancelledWrite, Event, WriteAttempt
from tests.session.items import said, texts_of
from tests.session.stores import Around, Gate, Patched, lose_answer, lose_request, patched_store, refuse

NAMES = "abcde"


class Queue:
    """Appends that wait behind one which is under way."""

    def __init__(self, patched: Patched) -> None:
        self.session = patched.store.session("s")
        self.driver = patched.driver
        self.gate = Gate()
        self.driver.around("append", self.gate)
        self.head = asyncio.create_task(self.session.append(said("head")))
        self.waiting: dict[str, asyncio.Task[Version]] = {}

    async def fill(self) -> None:
        await self.gate.arrived.wait()
        for name in NAMES:
            self.waiting[name] = asyncio.create_task(self.session.append(said(f"{name}1", f"{name}2")))
            await asyncio.sleep(0)

    async def go(self) -> list[Version | BaseException]:
        """Let them go, and give what became of each in turn."""
        self.gate.release.set()
        await self.head
        return await asyncio.gather(*self.waiting.values(), return_exceptions=True)

    @property
    def groups(self) -> list[int]:
        """How many members each statement had."""
        return [len(group) for group in self.driver.sent("append")]


@pytest.fixture
async def queue(patched: Patched) -> Queue:
    queue = Queue(patched)
    await queue.fill()
    return queue


async def stored(session: CasSession) -> list[str]:
    """What is stored behind the head, in blocks of two, held together."""
    texts = texts_of((await session.snapshot()).items)
    assert texts[0] == "head"
    blocks = list(zip(texts[1::2], texts[2::2], strict=True))
    assert all(one == f"{two[0]}1" and two.endswith("2") for one, two in blocks)
    return [one[0] for one, _ in blocks]


async def test_appends_that_wait_leave_as_one_statement(queue: Queue) -> None:
    versions = await queue.go()

    assert queue.groups == [1, 5]
    assert versions == [2, 3, 4, 5, 6]
    assert await stored(queue.session) == list(NAMES)


async def test_who_appends_again_at_once_goes_with_the_others_again(patched: Patched) -> None:
    session = patched.store.session("s")

    async def three_times(name: str) -> None:
        for _ in range(3):
            await session.append(said(f"{name}1", f"{name}2"))

    await asyncio.gather(*(three_times(name) for name in NAMES))

    assert [len(group) for group in patched.driver.sent("append")] == [1, 5, 5, 4]


async def test_a_hook_hears_of_each_member(database_url: str) -> None:
    heard: list[Event] = []
    async with patched_store(database_url, on_event=heard.append) as patched:
        session = patched.store.session("s")
        await asyncio.gather(*(session.append(said(name)) for name in NAMES))

    sendings = [event for event in heard if isinstance(event, WriteAttempt)]
    assert [(event.attempt, event.outcome) for event in sendings] == [(1, "landed")] * len(NAMES)
    assert len({event.op_id for event in sendings}) == len(NAMES)


async def test_each_has_a_version_an_op_row_and_a_nonce_of_its_own(queue: Queue) -> None:
    versions = await queue.go()
    operations = list(reversed(await queue.session.operations()))

    assert [row.manifest.version for row in operations[1:]] == versions
    assert len({row.op_id for row in operations}) == 6
    assert len({row.manifest.version.nonce for row in operations}) == 6
    assert [row.manifest.version.nonce for row in operations[1:]] == [v.nonce for v in versions]  # type: ignore[union-attr]


@pytest.mark.parametrize("verb", ["clear", "pop", "conditional append"])
async def test_other_writes_do_not_wait_for_the_queue(patched: Patched, verb: str) -> None:
    session = patched.store.session("s")
    await session.append(said("zero"))
    queue = Queue(patched)
    await queue.fill()

    match verb:
        case "clear":
            version = await session.clear()
        case "pop":
            _, version = await session.pop()
        case _:
            version = await session.append(said("x"), expected_version=1)
    landed = await queue.go()

    assert version == 2
    assert landed == [4, 5, 6, 7, 8]


async def test_appends_to_another_session_do_not_wait(queue: Queue, patched: Patched) -> None:
    version = await patched.store.session("another").append(said("x"))
    await queue.go()

    assert version == 1


async def test_a_caller_cancelled_while_it_waits_is_dropped(queue: Queue) -> None:
    queue.waiting["c"].cancel()
    await asyncio.sleep(0)

    outcomes = await queue.go()

    assert [type(outcome) for outcome in outcomes].count(asyncio.CancelledError) == 1
    assert queue.groups == [1, 4]
    assert await stored(queue.session) == list("abde")
    assert await queue.session.version() == 5


async def test_a_caller_cancelled_after_its_group_left_is_settled_first(database_url: str) -> None:
    """Its items are stored, as the event says, and the others hear nothing of it."""
    heard: list[Event] = []
    async with patched_store(database_url, on_event=heard.append) as patched:
        queue = Queue(patched)
        await queue.fill()
        group = Gate()
        queue.driver.around("append", group)
        going = asyncio.create_task(queue.go())
        await group.arrived.wait()
        for _ in range(2):
            queue.waiting["c"].cancel()
            await asyncio.sleep(0)
        is_done_before_its_group = queue.waiting["c"].done()
        group.release.set()
        outcomes = await going

        assert not is_done_before_its_group
        assert isinstance(outcomes[2], asyncio.CancelledError)
        assert await stored(queue.session) == list(NAMES)
    cancelled = [event for event in heard if isinstance(event, CancelledWrite)]
    assert [event.outcome for event in cancelled] == ["landed"]


async def test_a_member_that_the_database_refuses_takes_no_other_down(
    patched: Patched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its op_id is another write's, so the server refuses the group; each member is then sent alone."""
    session = patched.store.session("s")
    taken = "checkout-7"
    await session.append(said("zero"), op_id=taken)
    await session.clear()
    op_ids = iter(["h", "1", "2", taken, "4", "5"])
    monkeypatch.setattr("cas_session.verbs.new_op_id", lambda: next(op_ids))
    queue = Queue(patched)
    await queue.fill()
    monkeypatch.undo()
    queue.driver.called.clear()

    outcomes = await queue.go()

    assert isinstance(outcomes[2], OperationMismatchError)
    assert [outcome for at, outcome in enumerate(outcomes) if at != 2] == [4, 5, 6, 7]
    assert await stored(queue.session) == list("abde")
    assert queue.groups == [5, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("loss", [lose_answer, lose_request], ids=["the answer", "the request"])
async def test_a_group_of_unknown_outcome_lands_once(queue: Queue, loss: Around) -> None:
    queue.driver.around("append", loss)

    versions = await queue.go()

    assert versions == [2, 3, 4, 5, 6]
    assert await stored(queue.session) == list(NAMES)
    assert all(member.fenced for (member,) in queue.driver.sent("append")[2:])


async def test_a_group_of_unknown_outcome_whose_members_cannot_be_asked_is_unknown(queue: Queue) -> None:
    """Each says so with its own op_id; none is taken for not landed."""
    queue.driver.around("append", lose_answer, *[refuse] * 200)

    outcomes = await queue.go()

    sent = queue.driver.sent("append")[1]
    assert [outcome.op_id for outcome in outcomes] == [member.op_id for member in sent]  # type: ignore[union-attr]


@pytest.mark.parametrize("error", [GroupRefusedError, StorageUnavailableError])
async def test_a_group_that_surely_did_not_land_is_sent_member_by_member(
    queue: Queue, error: type[Exception]
) -> None:
    async def fail(verb: Around, *args: object) -> None:
        raise error("not now")

    queue.driver.around("append", fail)

    versions = await queue.go()

    assert versions == [2, 3, 4, 5, 6]
    assert queue.groups == [1, 5, 1, 1, 1, 1, 1]


async def test_an_error_that_nobody_expected_reaches_every_member(queue: Queue) -> None:
    """And the queue goes on."""

    async def fail(verb: Around, *args: object) -> None:
        raise RuntimeError("a bug")

    queue.driver.around("append", fail)

    outcomes = await queue.go()
    later = await queue.session.append(said("later"))

    assert [str(outcome) for outcome in outcomes] == ["a bug"] * 5
    assert later == 2


async def test_a_group_is_bounded_in_bytes(patched: Patched) -> None:
    """One that is larger than a group goes alone."""
    queue = Queue(patched)
    await queue.gate.arrived.wait()
    sizes = [300_000, 300_000, 300_000, 2_000_000, 10]
    for at, size in enumerate(sizes):
        queue.waiting[str(at)] = asyncio.create_task(queue.session.append(said("x" * size)))
        await asyncio.sleep(0)

    versions = await queue.go()

    assert versions == [2, 3, 4, 5, 6]
    assert queue.groups == [1, 3, 1, 1]
    assert [len(item["content"]) for item in (await queue.session.snapshot()).items[1:]] == sizes


async def test_the_first_of_many_that_fails_leaves_the_queue_working(queue: Queue) -> None:
    """The head is cancelled while its statement is held: those behind it land."""
    queue.head.cancel()
    queue.gate.release.set()
    outcomes = await asyncio.gather(*queue.waiting.values())

    texts = texts_of((await queue.session.snapshot()).items)
    assert [text for text in texts if text != "head"] == [f"{name}{at}" for name in NAMES for at in (1, 2)]
    assert sorted(outcomes) == list(range(outcomes[0], outcomes[0] + 5))
