"""URLs of Postgres servers as the field writes them, as arguments of asyncpg."""

from __future__ import annotations

import urllib.parse
from typing import Any

from sqlalchemy import URL

from cas_session.errors import ConfigurationError

# What libpq asks of the client; asyncpg would ask the server, which refuses to start.
ONLY_FOR_LIBPQ = {
    "channel_binding",
    "gssencmode",
    "keepalives",
    "keepalives_count",
    "keepalives_idle",
    "keepalives_interval",
    "load_balance_hosts",
    "sslcompression",
    "sslsni",
    "tcp_user_timeout",
}

# Parameters of SQLAlchemy and of other drivers that change nothing here.
WITHOUT_EFFECT = {"async_fallback", "pgbouncer", "prepared_statement_name_func"}

NUMBERS = {
    "connect_timeout": "timeout",
    "statement_cache_size": "statement_cache_size",
    "prepared_statement_cache_size": "statement_cache_size",
    "max_cached_statement_lifetime": "max_cached_statement_lifetime",
    "max_cacheable_statement_size": "max_cacheable_statement_size",
}

SSL_MODES = {"true": "require", "1": "require", "false": "disable", "0": "disable"}


def connect_arguments(url: str | URL) -> dict[str, Any]:
    """The arguments of `asyncpg.connect` for a URL as libpq, SQLAlchemy or a hosting service writes it.

    ``postgres://``, ``postgresql://`` and ``postgresql+asyncpg://`` are the same. The query may hold what
    libpq knows (``sslmode``, ``host`` of a socket folder, several hosts, ``connect_timeout``, ``options``),
    server settings (``application_name``), and ``statement_cache_size`` or ``prepared_statement_cache_size``,
    of which 0 is right behind a transaction pooler.

    Raises:
        ConfigurationError: It is no URL of a Postgres server, or a number in it is none.
    """
    if isinstance(url, URL):
        scheme, location = url.drivername, ""
        query = [(name, value) for name, values in url.normalized_query.items() for value in values]
        given = {
            "user": url.username,
            "password": url.password,
            "host": url.host,
            "port": url.port,
            "database": url.database,
        }
    else:
        scheme, _, rest = url.partition("://")
        location, _, text = rest.partition("?")
        query = urllib.parse.parse_qsl(text, keep_blank_values=True)
        given = {}
    if scheme.partition("+")[0] not in ("postgres", "postgresql"):
        raise ConfigurationError("a Postgres URL begins with postgresql:// or postgresql+asyncpg://")
    kept, numbers = _sorted(query)
    dsn = f"postgresql://{location}" + (f"?{urllib.parse.urlencode(kept)}" if kept else "")
    return {"dsn": dsn, **{name: value for name, value in given.items() if value is not None}, **numbers}


def _sorted(query: list[tuple[str, str]]) -> tuple[dict[str, str], dict[str, int]]:
    """What stays in the DSN, for asyncpg to read, and what asyncpg takes as an argument only."""
    kept: dict[str, str] = {}
    numbers: dict[str, int] = {}
    for name, value in query:
        if name in NUMBERS:
            numbers[NUMBERS[name]] = _number(name, value)
        elif name == "ssl":
            kept["sslmode"] = SSL_MODES.get(value.lower(), value)
        elif name == "host" and "host" in kept:
            kept["host"] += f",{value}"  # SQLAlchemy repeats the name for several hosts
        elif name not in ONLY_FOR_LIBPQ and name not in WITHOUT_EFFECT:
            kept[name] = value
    if numbers.get("timeout") == 0:
        del numbers["timeout"]  # libpq: wait without end; the call's own time bounds it
    return kept, numbers


def _number(name: str, value: str) -> int:
    if not (value.isascii() and value.isdigit()):
        raise ConfigurationError(f"{name}={value!r} in the Postgres URL is no number")
    return int(value)
