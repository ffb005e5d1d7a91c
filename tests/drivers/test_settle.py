"""What was begun ends first; then the cancellation goes on."""

from __future__ import annotations

import asyncio

import pytest

from cas_session.driver import CancelledUnitError
from cas_session.drivers.settle import settle
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
    assert not unit.done()


async def test_the_unit_itself_is_never_cancelled() -> None:
    ended = asyncio.Event()

    async def unit() -> None:
        await turns(20)
        ended.set()

    task = asyncio.create_task(settle(unit()))
    await turns(3)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
