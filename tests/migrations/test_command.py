"""The alembic command in a checkout, on the database that CAS_SESSION_URL names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cas_session import migrate

ROOT = Path(__file__).parents[2]


def alembic(*arguments: str, url: str | None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "CAS_SESSION_URL"}
    if url is not None:
        environment["CAS_SESSION_URL"] = url
    return subprocess.run(
        [sys.executable, "-m", "alembic", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def assert_goes_up_and_down(url: str) -> None:
    up = alembic("upgrade", "head", url=url)
    current = alembic("current", url=url)
    check = alembic("check", url=url)
    down = alembic("downgrade", "base", url=url)
    gone = alembic("current", url=url)

    assert up.returncode == 0, up.stderr
    assert migrate.HEAD in current.stdout
    assert "No new upgrade operations" in check.stdout, check.stderr
    assert down.returncode == 0, down.stderr
    assert migrate.HEAD not in gone.stdout


@pytest.mark.parametrize("scheme", ["sqlite", "sqlite+aiosqlite"])
def test_command_migrates_a_sqlite_file(tmp_path: Path, scheme: str) -> None:
    assert_goes_up_and_down(f"{scheme}:///{tmp_path / 'a b.db'}")


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+asyncpg"])
def test_command_migrates_a_postgres_database(empty_postgres: str, scheme: str) -> None:
    assert_goes_up_and_down(empty_postgres.replace("postgresql://", f"{scheme}://"))


def test_command_takes_what_hosting_services_write_into_urls(empty_postgres: str) -> None:
    assert_goes_up_and_down(f"{empty_postgres}&sslmode=disable&channel_binding=prefer&connect_timeout=5")


def test_command_without_a_url_says_which_variable_to_set() -> None:
    refused = alembic("upgrade", "head", url=None)

    assert refused.returncode != 0
    assert "set CAS_SESSION_URL" in refused.stderr


@pytest.mark.parametrize(
    ("url", "type_of_moments"), [("sqlite://", "DATETIME"), ("postgresql://", "TIMESTAMP")]
)
def test_command_prints_the_statements_for_those_who_run_them_by_hand(url: str, type_of_moments: str) -> None:
    printed = alembic("upgrade", "head", "--sql", url=url)

    assert printed.returncode == 0, printed.stderr
    assert "CREATE TABLE cas_session_item" in printed.stdout
    assert type_of_moments in printed.stdout
