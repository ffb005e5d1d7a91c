"""Which schema a release can work with, and what it says of another."""

from __future__ import annotations

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory

from cas_session import migrate, schema
from cas_session.errors import SchemaVersionError

URL = "postgresql://app:secret@db/chat?sslmode=require"


@pytest.mark.parametrize(
    "revision", ["0002_serves_0002", "0002_serves_0001", "0003_serves_0001", "0004_serves_0002"]
)
def test_schema_that_serves_this_release_is_accepted(revision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate, "HEAD", "0002_serves_0001")

    migrate.check_revision(revision, URL)


@pytest.mark.parametrize(
    ("revision", "what_to_do"),
    [
        (None, "cas-session migrate"),
        ("0001_serves_0001", "cas-session migrate"),
        ("0003_serves_0003", "pip install -U cas-session"),
        ("ae1027a6acf", "cas_session_alembic_version"),
        ("0003_serves_0001x", "cas_session_alembic_version"),
    ],
)
def test_schema_that_does_not_serve_this_release_is_refused_with_what_to_do(
    revision: str | None, what_to_do: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "HEAD", "0002_serves_0001")

    with pytest.raises(SchemaVersionError, match=what_to_do) as caught:
        migrate.check_revision(revision, URL)

    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (URL, "postgresql://app:***@db/chat?sslmode=require"),
        ("postgresql://app@db/chat", "postgresql://app@db/chat"),
        ("postgresql://a:p@ss:w@h1:1,h2:2/d", "postgresql://a:***@h1:1,h2:2/d"),
        (
            "postgresql:///d?host=/tmp&user=a&password=secret&port=1",
            "postgresql:///d?host=/tmp&user=a&password=***&port=1",
        ),
        ("sqlite+aiosqlite:////tmp/a:b@c.db", "sqlite+aiosqlite:////tmp/a:b@c.db"),
        ("postgresql://app:***@db/chat", "postgresql://app:***@db/chat"),
    ],
)
def test_password_is_hidden_in_a_url_that_is_shown(url: str, shown: str) -> None:
    assert migrate.hide_password(url) == shown


def test_newest_migration_is_the_one_that_the_code_names() -> None:
    config = Config()
    config.set_main_option("script_location", str(migrate._script_folder()))

    heads = ScriptDirectory.from_config(config).get_heads()

    assert heads == [schema.REVISION]
