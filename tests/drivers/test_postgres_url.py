"""URLs as libpq, SQLAlchemy and hosting services write them, as asyncpg understands them."""

from __future__ import annotations

from typing import Any

import asyncpg.connect_utils
import pytest
from sqlalchemy import make_url

from cas_session.drivers.postgres import PostgresDriver
from cas_session.drivers.postgres_url import connect_arguments
from cas_session.errors import ConfigurationError

SOCKET = "/run/pg/.s.PGSQL.5432"


def parsed(url: Any) -> tuple[list[Any], Any]:
    """The addresses and parameters that asyncpg makes of it."""
    arguments = connect_arguments(url)
    for name in ("timeout", "statement_cache_size", "max_cached_statement_lifetime"):
        arguments.pop(name, None)
    defaults = dict.fromkeys(
        [
            "host",
            "port",
            "user",
            "password",
            "passfile",
            "database",
            "ssl",
            "direct_tls",
            "server_settings",
            "target_session_attrs",
            "krbsrvname",
            "gsslib",
            "service",
            "servicefile",
        ]
    )
    return asyncpg.connect_utils._parse_connect_dsn_and_args(**{**defaults, **arguments})


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+asyncpg", "postgres+asyncpg"])
def test_every_scheme_is_the_same(scheme: str) -> None:
    addresses, parameters = parsed(f"{scheme}://ann:s%40cret@db.example:6543/chat")

    assert addresses == [("db.example", 6543)]
    assert (parameters.user, parameters.password, parameters.database) == ("ann", "s@cret", "chat")


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("postgresql://ann@a:1,b:2/chat", [("a", 1), ("b", 2)]),
        ("postgresql://ann@a,b/chat", [("a", 5432), ("b", 5432)]),
        ("postgresql://ann@/chat?host=a,b&port=1,2", [("a", 1), ("b", 2)]),
        ("postgresql+asyncpg://ann@/chat?host=a:1&host=b:2", [("a", 1), ("b", 2)]),
        ("postgresql://ann@/chat?host=/run/pg", [SOCKET]),
        ("postgresql://ann@%2Frun%2Fpg/chat", [SOCKET]),
        ("postgresql://ann@[::1]:7/chat", [("::1", 7)]),
    ],
)
def test_hosts_ports_and_socket_folders(url: str, addresses: list[Any]) -> None:
    assert parsed(url)[0] == addresses


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+asyncpg://ann:s%40cret@db.example:6543/chat?sslmode=disable&application_name=bot",
        "postgresql+asyncpg://ann:s%40cret@/chat?host=/run/pg&sslmode=disable",
        "postgresql+asyncpg://ann:s%40cret@/chat?host=a:1&host=b:2&sslmode=disable",
    ],
)
def test_a_url_object_means_what_its_text_means(url: str) -> None:
    assert parsed(make_url(url)) == parsed(url)


@pytest.mark.parametrize(
    ("query", "sslmode"),
    [
        ("sslmode=require", "require"),
        ("sslmode=verify-full&channel_binding=require", "verify_full"),
        ("ssl=require", "require"),
        ("ssl=true", "require"),
        ("ssl=disable", "disable"),
        ("", "prefer"),
    ],
)
def test_tls_in_every_spelling(query: str, sslmode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import certifi

    monkeypatch.setenv("PGSSLROOTCERT", certifi.where())

    assert parsed(f"postgresql://ann@db/chat?{query}")[1].sslmode.name == sslmode


@pytest.mark.parametrize("name", ["statement_cache_size", "prepared_statement_cache_size"])
def test_prepared_statements_can_be_switched_off(name: str) -> None:
    arguments = connect_arguments(f"postgresql://ann@db/chat?{name}=0")

    assert arguments["statement_cache_size"] == 0
    assert name not in arguments["dsn"]


def test_server_settings_go_to_the_server_and_what_is_libpqs_own_does_not() -> None:
    url = "postgresql://ann@db/chat?application_name=bot&options=-c%20lock_timeout%3D5s&keepalives=1&pgbouncer=true"

    assert parsed(url)[1].server_settings == {"application_name": "bot", "options": "-c lock_timeout=5s"}


@pytest.mark.parametrize(("text", "timeout"), [("3", 3), ("0", None)])
def test_connect_timeout_is_the_connections_own(text: str, timeout: int | None) -> None:
    assert connect_arguments(f"postgresql://db/chat?connect_timeout={text}").get("timeout") == timeout


@pytest.mark.parametrize(
    "url", ["mysql://db/chat", "db/chat", "postgresql://db/chat?statement_cache_size=none", "postgresq://db"]
)
def test_what_is_no_postgres_url_is_for_a_person_to_mend(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        PostgresDriver(url)

    assert "chat" not in str(caught.value) or "statement_cache_size" in str(caught.value)
