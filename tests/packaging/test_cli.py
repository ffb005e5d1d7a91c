"""The cas-session command, as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from cas_session.schema import REVISION


def run(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=os.environ | {"COLUMNS": "200"} | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def cas_session(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run("from cas_session.cli import main; main()", *arguments, **environment)


def assert_one_line(done: subprocess.CompletedProcess[str], words: str) -> None:
    assert done.returncode == 2, done.stdout
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_version_is_printed() -> None:
    assert cas_session("--version").stdout == f"cas-session {version('cas-session')}\n"


@pytest.mark.parametrize("scheme", ["sqlite", "sqlite+aiosqlite"])
def test_migrate_makes_the_tables_and_check_then_agrees(tmp_path: Path, scheme: str) -> None:
    url = f"{scheme}:///{tmp_path / 'chat.db'}"

    before = cas_session("migrate", "--check", url)
    untouched = not (tmp_path / "chat.db").exists()
    migrated = cas_session("migrate", url)
    after = cas_session("migrate", "--check", url)

    assert_one_line(before, f"cas-session migrate {url}")
    assert untouched
    assert migrated.stdout == f"{url} is at {REVISION}\n", migrated.stderr
    assert after.returncode == 0, after.stderr


def test_migrate_of_a_server_makes_the_tables_and_check_then_agrees(empty_postgres: str) -> None:
    before = cas_session("migrate", "--check", empty_postgres)
    migrated = cas_session("migrate", empty_postgres)
    after = cas_session("migrate", "--check", CAS_SESSION_URL=empty_postgres)

    assert_one_line(before, "cas-session migrate")
    assert migrated.returncode == 0, migrated.stderr
    assert REVISION in after.stdout, after.stderr


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql://u:secret@h/d", "mysql"),
        ("nonsense", "sqlite:///"),
        ("sqlite:////no/such/folder/chat.db", "/no/such/folder/chat.db"),
        ("postgresql://u:secret@127.0.0.1:1/d", "127.0.0.1"),
    ],
)
def test_error_of_the_package_is_one_line_without_the_password(url: str, words: str) -> None:
    done = cas_session("migrate", url)

    assert_one_line(done, words)
    assert "secret" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("missing", "command", "extra"),
    [("typer", "--version", "cli"), ("rich", "demo", "cli"), ("uvicorn", "demo", "demo")],
)
def test_missing_extra_is_one_line_that_names_it(missing: str, command: str, extra: str) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; from cas_session.cli import main; main()"

    assert_one_line(run(program, command), f"pip install 'cas-session[{extra}]'")
