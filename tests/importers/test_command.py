"""cas-session import and export, as processes."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from agents import SQLiteSession

from cas_session import SessionStore
from tests.packaging.test_cli import assert_one_line, cas_session
from tests.session.items import said, texts_of


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A file of the SDK's, with a whole conversation and one with a corrupt row."""
    file = tmp_path / "theirs.db"

    async def fill() -> None:
        for session_id, texts in (("whole", "abc"), ("broken", "xyz")):
            session = SQLiteSession(session_id, file)
            await session.add_items(said(*texts))  # type: ignore[arg-type]
            session.close()

    asyncio.run(fill())
    return file


def break_row(file: Path) -> None:
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("UPDATE agent_messages SET message_data = '{' WHERE id = 5")
    connection.close()


def items_of(url: str, session_id: str) -> list[Any]:
    async def read() -> list[Any]:
        async with SessionStore(url) as store:
            return list(await store.session(session_id).get_items())

    return asyncio.run(read())


def test_a_file_of_the_sdk_is_imported_exported_and_imported_again(
    theirs: Path, database_url: str, tmp_path: Path
) -> None:
    lines, copy = tmp_path / "all.jsonl", f"sqlite:///{tmp_path}/copy.db"

    imported = cas_session("import", str(theirs), "--to", database_url)
    again = cas_session("import", f"sqlite:///{theirs}", CAS_SESSION_URL=database_url)
    exported = cas_session("export", database_url, "--output", str(lines))
    copied = cas_session("import", str(lines), "--to", copy)

    assert imported.stdout == "imported 6 items in 2 sessions; 0 items were there\n", imported.stderr
    assert again.stdout == "imported 0 items in 0 sessions; 6 items were there\n", again.stderr
    assert exported.stdout == ""
    assert exported.stderr == "exported 2 sessions, 6 items\n"
    assert copied.returncode == 0, copied.stderr
    assert texts_of(items_of(copy, "whole")) == list("abc")
    assert sorted(path.name for path in tmp_path.glob("*.part")) == []


def test_export_writes_to_standard_output_what_it_is_asked_for(theirs: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ours.db"
    cas_session("import", str(theirs), "--to", url)

    exported = cas_session("export", url, "--session", "broken", "--session", "whole")

    assert [json.loads(line)["item"]["content"] for line in exported.stdout.splitlines()] == list("xyzabc")


def test_what_is_rejected_makes_the_exit_status_1_and_goes_to_a_file(theirs: Path, tmp_path: Path) -> None:
    url, rejects = f"sqlite:///{tmp_path}/ours.db", tmp_path / "rejects.jsonl"
    break_row(theirs)

    refused = cas_session("import", str(theirs), "--to", url, "--rejects", str(rejects))
    rows = [json.loads(line) for line in rejects.read_text().splitlines()]
    rest = cas_session("import", str(theirs), "--to", url, "--leave-out-corrupt")

    assert (refused.returncode, rest.returncode) == (1, 1)
    assert "1 rows rejected, 1 conversations left as they are" in refused.stdout
    assert "agent_messages, row 5, session 'broken'" in refused.stderr
    assert [(row["row"], row["session_id"], row["text"]) for row in rows] == [
        (5, "broken", "{"),
        (None, "broken", None),
    ]
    assert texts_of(items_of(url, "broken")) == ["x", "z"]


def test_a_dry_run_makes_no_file(theirs: Path, tmp_path: Path) -> None:
    dry = cas_session("import", str(theirs), "--to", f"sqlite:///{tmp_path}/ours.db", "--dry-run")

    assert dry.returncode == 0, dry.stderr
    assert dry.stdout == (
        "nothing was written; would have imported 6 items in 2 sessions; 0 items were there\n"
    )
    assert not (tmp_path / "ours.db").exists()


def test_bare_items_are_imported_into_the_session_that_is_given(tmp_path: Path) -> None:
    file, url = tmp_path / "items.jsonl", f"sqlite:///{tmp_path}/ours.db"
    file.write_text('{"role": "user", "content": "a"}\n')

    done = cas_session("import", str(file), "--session-id", "talk", "--to", url)

    assert done.returncode == 0, done.stderr
    assert texts_of(items_of(url, "talk")) == ["a"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["import", "missing.jsonl", "--to", "{url}"], "cannot read 'missing.jsonl'"),
        (["import", "sqlite:///missing.db", "--to", "{url}"], "there is no file"),
        (["import", "mysql://u:secret@h/d", "--to", "{url}"], "imported from"),
        (["import", "postgresql://u:secret@127.0.0.1:1/d", "--to", "{url}"], "127.0.0.1"),
        (["import", "{theirs}", "--to", "nonsense"], "sqlite:///"),
        (["import", "{theirs}", "--to", "{url}", "--messages-table", "nope"], "no table 'nope'"),
        (["import", "{theirs}", "--to", "{url}", "--session-id", "a"], "--session-id"),
        (["import", "{theirs}", "--to", "{url}", "--rejects", "/no/such/folder/r"], "cannot write"),
        (["export", "{url}"], "there is no database"),
        (["export", "sqlite:///{theirs}"], "no cas_session tables"),
    ],
)
def test_what_cannot_be_run_is_one_line_and_exit_status_2(
    theirs: Path, tmp_path: Path, arguments: list[str], words: str
) -> None:
    url = f"sqlite:///{tmp_path}/ours.db"

    done = cas_session(*(argument.format(url=url, theirs=theirs) for argument in arguments))

    assert_one_line(done, words)
    assert "secret" not in done.stderr + done.stdout


def test_an_export_that_fails_leaves_the_file_as_it_was(theirs: Path, tmp_path: Path) -> None:
    url, file = f"sqlite:///{tmp_path}/ours.db", tmp_path / "all.jsonl"
    cas_session("import", str(theirs), "--to", url)
    file.write_text("older\n")

    done = cas_session("export", url, "--session", "whole", "--session", "never", "-o", str(file))

    assert_one_line(done, "no session 'never'")
    assert file.read_text() == "older\n"
    assert list(tmp_path.glob("*.part")) == []
