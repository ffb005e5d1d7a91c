"""What was begun ends first; then the cancellation goes on."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from cas_session.driver import CancelledUnitError
from cas_session.drivers.settle import settle, settle_here
from tests.drivers.sqlite_file import turns


def begun() -> asyncio.Future[str]:
    return asyncio.get_running_loop().create_future()


async def test_the_result_is_returned() -> None:
    unit = begun()
    task = asyncio.create_task(settle(unit))
    await turns(3)
    unit.set_result("landed")

    assert await task == "landed"


async def test_the_error_is_raised() -> None:
    unit = begun()
    unit.set_exception(ValueError("no"))

    with pytest.raises(ValueError, match="no"):
        await settle(unit)


@pytest.mark.parametrize("times", [1, 2, 5])
async def test_however_often_it_is_cancelled_it_waits(times: int) -> None:
    unit = begun()
    task = asyncio.create_task(settle(unit))
    for _ in range(times):
        await turns(2)
        task.cancel()
    await turns(5)
    still_waits = not task.done()
    unit.set_result("landed")

    assert still_waits
    with pytest.raises(CancelledUnitError) as caught:
        await task
    assert caught.value.error is None
    assert task.cancelled()


async def test_a_cancellation_carries_what_the_unit_raised() -> None:
    unit, error = begun(), ValueError("no")
    task = asyncio.create_task(settle(unit))
    await turns(2)
    task.cancel()
    await turns(2)
    unit.set_exception(error)

    with pytest.raises(CancelledUnitError) as caught:
        await task
    assert caught.value.error is error


async def test_what_is_withdrawn_is_not_waited_for() -> None:
    unit = begun()
    answers = [False, True]
    task = asyncio.create_task(settle(unit, withdraw=lambda: answers.pop(0)))
    await turns(2)
    task.cancel()
    await turns(2)
    waited = not task.done()
    task.cancel()

    assert waited
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert not isinstance(caught.value, CancelledUnitError)
    assert unit.cancelled()


Settle = Callable[[Coroutine[Any, Any, Any]], Coroutine[Any, Any, Any]]


@pytest.fixture(params=[settle, settle_here])
def settling(request: pytest.FixtureRequest) -> Settle:
    """Both ways to run a coroutine to its end."""
    ways: Settle = request.param
    return ways


async def test_the_unit_itself_is_never_cancelled(settling: Settle) -> None:
    ended = asyncio.Event()

    async def unit() -> None:
        await turns(20)
        ended.set()

    task = asyncio.create_task(settling(unit()))
    await turns(3)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_a_coroutine_returns_raises_and_waits_as_it_does_by_itself(settling: Settle) -> None:
    async def unit(*, fails: bool) -> str:
        await asyncio.sleep(0)
        await asyncio.create_task(turns(2))
        with pytest.raises(LookupError):
            await asyncio.gather(asyncio.sleep(0), begun_and_failed())
        if fails:
            raise ValueError("no")
        return "landed"

    async def begun_and_failed() -> None:
        await turns(1)
        raise LookupError

    assert await settling(unit(fails=False)) == "landed"
    with pytest.raises(ValueError, match="no"):
        await settling(unit(fails=True))


@pytest.mark.parametrize("at", range(6))
async def test_a_cancellation_at_any_turn_comes_after_the_end(settling: Settle, at: int) -> None:
    parts: list[int] = []

    async def unit() -> None:
        for part in range(3):
            await asyncio.sleep(0)
            await asyncio.create_task(turns(1))
            parts.append(part)
        raise ValueError("no")

    task = asyncio.create_task(settling(unit()))
    await turns(at + 1)
    task.cancel()

    with pytest.raises(CancelledUnitError) as caught:
        await task
    assert isinstance(caught.value.error, ValueError)
    assert parts == [0, 1, 2]


async def test_a_task_that_cancels_itself_before_it_waits(settling: Settle) -> None:
    ended = asyncio.Event()

    async def unit() -> None:
        await asyncio.create_task(turns(3))
        ended.set()

    async def caller() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await settling(unit())

    with pytest.raises(CancelledUnitError):
        await asyncio.create_task(caller())
    assert ended.is_set()


async def test_a_unit_whose_own_part_is_cancelled_says_so(settling: Settle) -> None:
    """That is no cancellation of the caller."""
    part = begun()

    async def unit() -> str:
        try:
            return await part
        except asyncio.CancelledError:
            return "a part was cancelled"

    task = asyncio.create_task(settling(unit()))
    await turns(3)
    part.cancel()

    assert await task == "a part was cancelled"


async def test_a_deadline_of_the_caller_holds_after_the_end(settling: Settle) -> None:
    part = begun()

    async def unit() -> None:
        await part

    async def caller() -> None:
        async with asyncio.timeout(0):
            try:
                await settling(unit())
            except CancelledUnitError:
                raise asyncio.CancelledError from None

    task = asyncio.create_task(caller())
    await turns(10)
    still_waits = not task.done()
    part.set_result("")

    assert still_waits
    with pytest.raises(TimeoutError):
        await task


async def test_a_unit_that_ends_at_once_ends_at_once(settling: Settle) -> None:
    async def unit() -> str:
        return "landed"

    assert await settling(unit()) == "landed"


async def test_a_task_that_is_given_up_leaves_its_unit_closed() -> None:
    """An ending loop throws away what nobody waits for."""
    closed: list[bool] = []

    async def unit() -> None:
        try:
            await begun()
        finally:
            closed.append(True)

    call = settle_here(unit())
    call.send(None)
    call.close()

    assert closed == [True]


async def test_units_within_units_end_first_too() -> None:
    part = begun()

    async def inner() -> str:
        return await part

    async def outer() -> str:
        return await settle_here(inner()) + " twice"

    task = asyncio.create_task(settle_here(outer()))
    await turns(3)
    part.set_result("landed")
    assert await task == "landed twice"

    part = begun()
    task = asyncio.create_task(settle_here(outer()))
    await turns(3)
    task.cancel()
    await turns(3)
    still_waits = not task.done()
    part.set_result("landed")

    assert still_waits
    with pytest.raises(CancelledUnitError) as caught:
        await task
    assert caught.value.error is None


async def test_a_group_that_fails_waits_for_the_unit_of_another_task(settling: Settle) -> None:
    part = begun()
    ended = asyncio.Event()

    async def unit() -> None:
        await part
        ended.set()

    async def fails() -> None:
        await turns(3)
        raise LookupError

    async def caller() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(settling(unit()))
            group.create_task(fails())

    task = asyncio.create_task(caller())
    await turns(10)
    still_waits = not task.done()
    part.set_result("")

    assert still_waits
    with pytest.raises(ExceptionGroup) as caught:
        await task
    assert [type(error) for error in caught.value.exceptions] == [LookupError]
    assert ended.is_set()


async def test_a_task_without_the_accelerator_waits_as_well(settling: Settle) -> None:
    """Python has a second Task, written in Python."""
    part = begun()

    async def unit() -> str:
        await asyncio.sleep(0)
        return await part

    task = asyncio.tasks._PyTask(settling(unit()))  # type: ignore[attr-defined]
    await turns(5)
    task.cancel()
    task.cancel()
    await turns(5)
    still_waits = not task.done()
    part.set_result("landed")

    assert still_waits
    with pytest.raises(CancelledUnitError) as caught:
        await task
    assert caught.value.error is None


async def test_two_cancellations_in_one_turn_withdraw_once() -> None:
    unit = begun()
    asked: list[bool] = []

    def withdraw() -> bool:
        asked.append(True)
        return len(asked) == 1

    task = asyncio.create_task(settle(unit, withdraw=withdraw))
    await turns(2)
    task.cancel()
    task.cancel()

    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert not isinstance(caught.value, CancelledUnitError)
    assert asked == [True]


async def test_what_has_ended_is_not_withdrawn() -> None:
    """In the turn in which it ended, before the caller heard of it."""
    unit = begun()
    task = asyncio.create_task(settle(unit, withdraw=lambda: pytest.fail("it has ended")))
    await turns(2)
    unit.set_result("landed")
    task.cancel()

    with pytest.raises(CancelledUnitError) as caught:
        await task
    assert caught.value.error is None


async def test_an_error_tells_where_it_was_raised(settling: Settle) -> None:
    async def unit() -> None:
        await asyncio.create_task(part())

    async def part() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        await settling(unit())
    assert "part" in [entry.name for entry in caught.traceback]


async def test_a_future_of_another_loop_is_an_error_as_it_is_by_itself(settling: Settle) -> None:
    """As with an engine whose connections were made in another loop."""
    other = asyncio.new_event_loop()
    foreign = other.create_future()
    other.close()
    ended: list[bool] = []

    async def unit() -> None:
        try:
            await foreign
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    task = asyncio.create_task(settling(unit()))
    await turns(20)

    assert task.done()
    with pytest.raises(RuntimeError, match="different loop"):
        await task
    assert ended == [True]


@pytest.mark.parametrize("at", [1, 2])
async def test_a_cancellation_keeps_its_message(settling: Settle, at: int) -> None:
    """By which whoever cancelled knows it as theirs, as the scopes of anyio do."""
    part = begun()

    async def unit() -> None:
        await asyncio.sleep(0)
        await part

    task = asyncio.create_task(settling(unit()))
    await turns(at)
    task.cancel("by the scope")
    await turns(3)
    part.set_result("")

    with pytest.raises(CancelledUnitError, match="by the scope"):
        await task


async def test_an_error_leaves_nothing_to_the_garbage_collector() -> None:
    """What a write carried is free as soon as its error is."""

    class Payload:
        pass

    async def unit(payload: Payload) -> None:
        await asyncio.sleep(0)
        raise ValueError(payload)

    payload = Payload()
    left = weakref.ref(payload)
    gc.disable()
    try:
        with contextlib.suppress(ValueError):
            await settle_here(unit(payload))
        del payload
        assert left() is None
    finally:
        gc.enable()
