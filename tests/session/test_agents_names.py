"""The names of openai-agents: its signatures, its protocols, its types."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from agents.memory import (
    OpenAIResponsesCompactionAwareSession,
    Session,
    SessionABC,
    SessionSettings,
    is_openai_responses_compaction_aware_session,
)

from cas_session import CasSession, SessionStore
from cas_session.compactors import ResponsesCompactor
from tests.session.items import said, turns

TYPED = """
import agents.memory
from agents.items import TResponseInputItem
from cas_session import SessionStore
from cas_session.compactors import ResponsesCompactor

store = SessionStore("sqlite://")
s: agents.memory.Session = store.session("x")
compacting: agents.memory.OpenAIResponsesCompactionAwareSession = store.session(
    "x", compactor=ResponsesCompactor(model="m")
)


async def use() -> None:
    items: list[TResponseInputItem] = await store.session("x").get_items(3)
    await s.add_items(items)
    item: TResponseInputItem | None = await store.session("x").pop_item()
    await s.clear_session()
    await compacting.run_compaction({"response_id": "r", "force": True, "store": False})
"""
WRONG = """
wrong: agents.memory.Session = object()
"""


@pytest.fixture
def session(store: SessionStore) -> CasSession:
    return store.session("s")


@pytest.fixture
def compacting(store: SessionStore) -> CasSession:
    return store.session("s", compactor=ResponsesCompactor(model="m"))


def shape(function: object) -> list[tuple[object, ...]]:
    """Names, kinds, defaults and annotations, as they are written."""
    signature = inspect.signature(function)  # type: ignore[arg-type]
    parameters = [(p.name, p.kind, p.default, p.annotation) for p in signature.parameters.values()]
    return [*parameters, ("->", signature.return_annotation)]


@pytest.mark.parametrize("name", ["get_items", "add_items", "pop_item", "clear_session"])
@pytest.mark.parametrize("protocol", [Session, SessionABC])
def test_a_history_method_has_the_protocols_signature(protocol: type, name: str) -> None:
    assert shape(getattr(CasSession, name)) == shape(getattr(protocol, name))


def test_run_compaction_has_the_protocols_signature_and_the_runners_wrapper() -> None:
    *ours, wrapper, result = shape(CasSession.run_compaction)
    *theirs, their_result = shape(OpenAIResponsesCompactionAwareSession.run_compaction)

    assert [*ours, result] == [*theirs, their_result]
    assert wrapper[:3] == ("wrapper", inspect.Parameter.KEYWORD_ONLY, None)


def test_no_history_method_takes_the_wrapper() -> None:
    """The runner gives it to all four or to none."""
    for name in ("get_items", "add_items", "pop_item", "clear_session"):
        assert "wrapper" not in inspect.signature(getattr(CasSession, name)).parameters


@pytest.mark.slow  # half a minute of CPU without a cache
def test_mypy_takes_a_session_for_the_protocols_and_nothing_else(tmp_path: Path) -> None:
    """The one error is that of the line which is wrong on purpose, so the others say something."""
    file = tmp_path / "typed.py"
    file.write_text(TYPED + WRONG)

    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", str(file)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )

    (error, summary) = done.stdout.splitlines()[:1] + done.stdout.splitlines()[-1:]
    assert "Found 1 error in 1 file" in summary
    assert 'has type "object", variable has type "Session"' in error


def test_a_session_is_one_of_the_protocol(session: CasSession, compacting: CasSession) -> None:
    assert isinstance(session, Session)
    assert isinstance(compacting, Session)
    assert isinstance(compacting, OpenAIResponsesCompactionAwareSession)


def test_without_a_compactor_a_runner_sees_a_plain_session(
    session: CasSession, compacting: CasSession
) -> None:
    assert not callable(session.run_compaction)
    assert not is_openai_responses_compaction_aware_session(session)
    assert not isinstance(session, OpenAIResponsesCompactionAwareSession)
    assert is_openai_responses_compaction_aware_session(compacting)


async def test_a_compactor_of_the_store_is_that_of_its_sessions(database_url: str) -> None:
    async with SessionStore(database_url, compactor=ResponsesCompactor(model="m")) as store:
        assert is_openai_responses_compaction_aware_session(store.session("s"))


async def test_the_names_do_what_the_verbs_do(session: CasSession) -> None:
    added = await session.add_items(said("one", "two", "three"))  # type: ignore[arg-type,func-returns-value]
    popped = await session.pop_item()
    items = await session.get_items()
    cleared = await session.clear_session()  # type: ignore[func-returns-value]

    assert (added, cleared) == (None, None)
    assert popped == said("three")[0]
    assert items == said("one", "two")
    assert (await session.snapshot()).items == []
    assert await session.pop_item() is None
    assert [row.kind for row in await session.operations()] == ["clear", "pop", "append"]


async def test_a_limit_counts_by_keyword_by_position_and_by_the_settings(session: CasSession) -> None:
    items = turns(3)
    await session.append(items)
    session.session_settings = SessionSettings(limit=2)

    assert await session.get_items() == items[-2:]
    assert await session.get_items(3) == items[-3:]
    assert await session.get_items(limit=1) == items[-1:]
    assert (await session.snapshot()).items == items

    session.session_settings = None
    assert await session.get_items() == items


async def test_no_key_is_added_to_an_item(session: CasSession) -> None:
    items = [{"role": "user", "content": "hello"}, {"type": "reasoning", "id": "rs_1", "summary": []}]
    await session.add_items(items)  # type: ignore[arg-type]

    assert [list(item) for item in await session.get_items()] == [
        ["role", "content"],
        ["type", "id", "summary"],
    ]


def test_the_package_does_not_import_agents() -> None:
    code = (
        "import sys, cas_session, cas_session.compactors, cas_session.drivers.sqlite\n"
        "assert 'agents' not in sys.modules, 'agents was imported'"
    )

    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
