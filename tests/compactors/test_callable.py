"""Any async callable is a compactor."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from unittest.mock import AsyncMock

import pytest

import cas_session.compactors
from cas_session import CompactionPolicy, CompactorError, SessionStore
from cas_session.compactors import Compacted, CompactionRequest, PruneCompactor, as_compactor
from tests.compactors.histories import Item, turn, user


async def fold(request: CompactionRequest) -> list[Item]:
    return [user(f"{len(request.items)} items")]


async def fold_to(text: str, request: CompactionRequest) -> Compacted:
    return Compacted(output=[user(text)], model="mine", usage={"total_tokens": 5})


class Folder:
    async def __call__(self, request: CompactionRequest) -> list[Item]:
        return [user("called")]


@pytest.mark.parametrize(
    ("compactor", "text"),
    [
        (fold, "4 items"),
        (functools.partial(fold_to, "partial"), "partial"),
        (Folder(), "called"),
        (lambda request: fold(request), "4 items"),
    ],
    ids=["function", "partial", "object", "lambda"],
)
async def test_a_session_takes_it(store: SessionStore, compactor: Any, text: str) -> None:
    session = store.session("s", compactor=compactor)
    await session.append(turn(1))

    report = await session.compact(force=True)

    assert report.status == "applied"
    assert [user(text)] == (await session.snapshot()).items


async def test_a_store_takes_it_for_all_its_sessions(fresh_sqlite: str) -> None:
    async with SessionStore(fresh_sqlite, compactor=fold) as store:
        session = store.session("s")
        await session.append(turn(1))

        assert (await session.compact(force=True)).landed


async def test_what_it_reports_is_recorded(store: SessionStore) -> None:
    session = store.session("s", compactor=functools.partial(fold_to, "x"))
    await session.append(turn(1))

    report = await session.compact(force=True)

    assert report.usage == {"total_tokens": 5}
    assert (await session.compactions())[0].model == "mine"


@pytest.mark.parametrize("error", [RuntimeError("boom"), CompactorError("boom")])
async def test_what_it_raises_is_reported(store: SessionStore, error: Exception) -> None:
    session = store.session("s", compactor=AsyncMock(spec=[], side_effect=error))
    await session.append(turn(1))

    report = await session.compact(force=True)

    assert report.status == "failed"
    assert "boom" in (report.error or "")
    assert turn(1) == (await session.snapshot()).items


async def test_a_plain_function_is_refused(store: SessionStore) -> None:
    """It would stop every other session while it works."""

    def blocking(request: CompactionRequest) -> list[Item]:
        return []

    session = store.session("s", compactor=blocking, policy=CompactionPolicy(on_error="raise"))  # type: ignore[arg-type]
    await session.append(turn(1))

    with pytest.raises(CompactorError, match="no async callable"):
        await session.compact(force=True)


@pytest.mark.parametrize("given", ["gpt-5.1", 3, PruneCompactor])
def test_anything_else_is_refused_at_once(store: SessionStore, given: Any) -> None:
    with pytest.raises(TypeError, match="a compactor has an async method compact"):
        store.session("s", compactor=given)


def test_a_compactor_is_left_as_it_is() -> None:
    compactor = PruneCompactor()

    assert as_compactor(compactor) is compactor


def test_the_names_are_sorted_and_there() -> None:
    names = cas_session.compactors.__all__

    assert sorted(names) == names
    exported: list[Callable[..., Any]] = [getattr(cas_session.compactors, name) for name in names]
    assert None not in exported
