"""What Alembic runs: on the connection that code hands in, else on the database of CAS_SESSION_URL."""

from __future__ import annotations

import asyncio
import os
from logging.config import fileConfig
from typing import Any

from alembic import context
from sqlalchemy import Connection

from cas_session import migrate, schema
from cas_session.errors import ConfigurationError

URL_VARIABLE = "CAS_SESSION_URL"
OPTIONS: dict[str, Any] = {
    "target_metadata": schema.metadata,
    "version_table": schema.VERSION_TABLE,
    # The tables may share a database with others.
    "include_name": lambda name, kind, parents: kind != "table" or name in schema.metadata.tables,
}


def url_from_environment() -> str:
    url = os.environ.get(URL_VARIABLE)
    if not url:
        raise ConfigurationError(
            f"set {URL_VARIABLE} to the database, such as sqlite:///chat.db or postgresql://user@host/name"
        )
    return url


def on_connection(connection: Connection) -> None:
    """Migrate inside the transaction that the connection is in; who began it commits."""
    context.configure(connection=connection, **OPTIONS)
    with context.begin_transaction():
        context.run_migrations()


def as_sql() -> None:
    """Print the statements (`alembic upgrade head --sql`)."""
    dialect = "sqlite" if url_from_environment().startswith("sqlite") else "postgresql"
    context.configure(dialect_name=dialect, literal_binds=True, **OPTIONS)
    with context.begin_transaction():
        context.run_migrations()


if context.config.config_file_name is not None:
    fileConfig(context.config.config_file_name, disable_existing_loggers=False)

if (given := context.config.attributes.get("connection")) is not None:
    on_connection(given)
elif context.is_offline_mode():
    as_sql()
else:
    asyncio.run(migrate.run(url_from_environment(), on_connection))
