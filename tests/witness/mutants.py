"""Known wrong stores: the real one with one change, in a statement, in a line of code or around a verb.

A change names the text that it replaces, so that a mutant whose place is gone says so.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest

from cas_session import StorageUnavailableError, WriteOutcomeUnknownError, writes
from cas_session.driver import Clear, Landed, Load, Loaded
from cas_session.drivers import (
    postgres,
    postgres_units,
    postgres_upkeep,
    postgres_writes,
    sqlite,
    sqlite_lane,
    sqlite_sql,
    sqlite_writes,
)

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutant:
    """A wrong store.

    Attributes:
        name: What is wrong.
        patches: What makes it wrong, until the test ends.
    """

    name: str
    patches: tuple[Patch, ...]

    def apply(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for patch in self.patches:
            patch(monkeypatch)


def statement(module: Any, name: str, *changes: tuple[str, str]) -> Patch:
    """A statement with some of its text replaced, wherever it stands in it."""
    return lambda monkeypatch: monkeypatch.setattr(module, name, _changed(getattr(module, name), changes))


def code(place: Any, name: str, *changes: tuple[str, str]) -> Patch:
    """A function or method with some of its text replaced."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        function = getattr(place, name)
        source = _changed(textwrap.dedent(inspect.getsource(function)), changes)
        scope: dict[str, Any] = {}
        exec(f"from __future__ import annotations\n{source}", function.__globals__, scope)
        monkeypatch.setattr(place, name, scope[name])

    return patch


def around(place: Any, name: str, wrapped: Callable[..., Awaitable[Any]]) -> Patch:
    """A verb with something around it: ``wrapped`` gets the real one first."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        real = getattr(place, name)

        async def call(self: Any, *args: Any, **named: Any) -> Any:
            return await wrapped(real, self, *args, **named)

        monkeypatch.setattr(place, name, call)

    return patch


def _changed(text: str, changes: tuple[tuple[str, str], ...]) -> str:
    for old, new in changes:
        assert old in text, f"{old!r} is not there any more"
        text = text.replace(old, new)
    return text


# Around verbs


async def _delete_and_forget(real: Any, self: Any, clear: Clear) -> Landed:
    landed: Landed = await real(self, clear)
    if clear.delete:
        await self.forget(clear.session_id)
    return landed


async def _items_then_version(real: Any, self: Any, load: Load) -> Loaded:
    loaded: Loaded = await real(self, load)
    return replace(loaded, row=(await real(self, Load(load.session_id, limit=0))).row)


async def _look_up(
    real: Any, self: Any, kind: Any, write: Any, verb: Any, policies: Any, **named: Any
) -> Landed:
    try:
        return await verb(write)  # type: ignore[no-any-return]
    except WriteOutcomeUnknownError as error:
        op = await self._driver.find_op(write.session_id, write.op_id)
        if op is None:
            raise StorageUnavailableError("it did not land", transient=False) from error
        return Landed(op.manifest, None)


# The mutants of the design

CLEAR_BY_DELETE = (
    ("base_seq = t.next_seq - 1,\n        base_gen = t.epoch + 1,\n        low_seq = t.next_seq,\n", ""),
    ("        erased_epoch = t.epoch + 1,\n", ""),
    (
        "    RETURNING t.*\n),",
        "    RETURNING t.*\n),\n"
        "d AS (\n    DELETE FROM cas_session_item i USING s WHERE i.session_id = $1::text\n),",
    ),
)
NO_EPOCH = (("t.epoch + 1", "t.epoch"),)

POSTGRES = [
    Mutant("blind clear by DELETE", (statement(postgres_writes, "CLEAR", *CLEAR_BY_DELETE),)),
    Mutant(
        "clear without epoch",
        (
            statement(postgres_writes, "CLEAR", *NO_EPOCH),
            statement(postgres_writes, "CLEAR_IF", *NO_EPOCH),
        ),
    ),
    Mutant(
        "version reuse after delete",
        (around(postgres.PostgresDriver, "clear", _delete_and_forget),),
    ),
    Mutant("version read after items", (around(postgres.PostgresDriver, "load", _items_then_version),)),
    Mutant(
        "base_seq that goes back",
        (
            statement(
                postgres_writes,
                "COMPACT",
                ("        AND t.base_seq <= $11::bigint AND $11::bigint < t.next_seq\n", ""),
            ),
        ),
    ),
    Mutant(
        "next_seq lowered by pop",
        (
            statement(
                postgres_writes,
                "POP",
                (
                    "        item_count = t.item_count - 1,",
                    "        next_seq = $9::bigint, item_count = t.item_count - 1,",
                ),
            ),
        ),
    ),
    Mutant(
        "removal by gen <> base_gen",
        (
            statement(
                postgres_upkeep,
                "REMOVE_ERASED",
                ("SELECT erased_epoch FROM", "SELECT erased_epoch, base_gen FROM"),
                ("i.gen < s.erased_epoch", "i.gen <> s.base_gen"),
            ),
        ),
    ),
    Mutant(
        "prune by gen <> base_gen",
        (
            statement(
                postgres_upkeep,
                "PRUNE",
                ("i.seq <= s.base_seq AND i.gen < s.base_gen", "true"),
                ("i.gen < b.base_gen", "i.gen <> b.base_gen"),
            ),
        ),
    ),
    Mutant(
        "23505 of a group read as landed",
        (
            code(
                postgres_units,
                "_append_group",
                (
                    "except (OpExistsError, StorageUnavailableError) as error:\n"
                    "        raise GroupRefusedError(str(error)) from error",
                    "except OpExistsError:\n"
                    "        return [await _landed_before(link, first, 'append')] * len(group)",
                ),
            ),
        ),
    ),
]

SQLITE = [
    Mutant(
        "clear without epoch",
        (code(sqlite_writes, "clear", ("epoch = before.epoch + 1", "epoch = before.epoch")),),
    ),
    Mutant("version reuse after delete", (around(sqlite.SqliteDriver, "clear", _delete_and_forget),)),
    Mutant("version read after items", (around(sqlite.SqliteDriver, "load", _items_then_version),)),
    Mutant(
        "base_seq that goes back",
        (
            code(
                sqlite_writes,
                "replace_prefix",
                ("if not before.base_seq <= prefix.through < before.next_seq:", "if False:"),
            ),
        ),
    ),
    Mutant(
        "next_seq lowered by pop",
        (code(sqlite_writes, "pop", ("epoch=before.epoch + 1,", "epoch=before.epoch + 1, next_seq=seq,")),),
    ),
    Mutant(
        "removal by gen <> base_gen",
        (statement(sqlite_sql, "DELETE_ERASED_ITEMS", ("i.gen < s.erased_epoch", "i.gen <> s.base_gen")),),
    ),
    Mutant(
        "prune by gen <> base_gen",
        (statement(sqlite_sql, "DELETE_HIDDEN_ITEMS", ("AND gen < ?", "AND gen <> ?")),),
    ),
    Mutant(
        "23505 of a group read as landed",
        (
            code(
                sqlite_writes,
                "append",
                (
                    "raise GroupRefusedError(str(error)) from error",
                    "return [_landed(raw, group[0], 'append')] * len(group)",
                ),
            ),
        ),
    ),
    Mutant(
        "answers before COMMIT",
        (
            code(
                sqlite_lane,
                "_run_member",
                (
                    '    raw.execute("RELEASE member")\n',
                    '    raw.execute("RELEASE member")\n'
                    "    unit.answer.get_loop().call_soon_threadsafe(_answer, unit.answer, outcome)\n"
                    "    while not unit.answer.done():\n        pass\n",
                ),
            ),
        ),
    ),
]

# Of the store: the same over both databases.
NEW_OP_ID = Mutant(
    "new op_id on retry",
    (
        code(
            writes.Writer,
            "send",
            ("replace(write, nonce=new_nonce()", "replace(write, op_id=new_op_id(), nonce=new_nonce()"),
        ),
    ),
)
LOOK_UP = Mutant("look-up instead of re-send", (around(writes.Writer, "send", _look_up),))


def use(name: str, database: Literal["sqlite", "postgres"]) -> None:
    """Make this process use a wrong store."""
    known = {"sqlite": SQLITE, "postgres": POSTGRES}[database]
    (mutant,) = (mutant for mutant in (*known, NEW_OP_ID, LOOK_UP) if mutant.name == name)
    mutant.apply(pytest.MonkeyPatch())
