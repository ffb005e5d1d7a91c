"""What each Postgres error means to the caller: decided here and nowhere else, by class and SQLSTATE.

https://www.postgresql.org/docs/current/errcodes-appendix.html
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from cas_session.errors import (
    CasSessionError,
    ConfigurationError,
    SchemaVersionError,
    StorageUnavailableError,
    WriteOutcomeUnknownError,
)

OP_KEY = "cas_session_op_pkey"

READ_ONLY = "25006"  # a primary that has become a standby

# The statement was rolled back, and the same one may succeed in a moment.
TRANSIENT = {
    "0A000",  # a cached plan that a migration made invalid; asyncpg drops it
    READ_ONLY,
    "40001",  # serialization failure, under another default isolation
    "40P01",  # deadlock
    "53300",  # too many connections
    "55P03",  # lock_timeout
    "57014",  # statement_timeout, or somebody cancelled it
    "57P03",  # starting up or shutting down
}

# The server was ending the connection, or says itself that it does not know.
OUTCOME_UNKNOWN = {"08P01", "40003"}

NO_TABLES = {"42P01", "42703"}  # undefined table, undefined column

# Prepared statements that a pooler in transaction mode gave to somebody else's connection.
POOLER_LOST_STATEMENT = {"26000", "42P05"}

CONFIGURATION = {
    "28000",  # no login
    "28P01",  # wrong password
    "3D000",  # no such database
    "3F000",  # no such schema
    "42501",  # no right to it
}

# What a server says to parameters that it does not know, before there is a connection.
BAD_STARTUP = ("0A", "22", "42")


class OpExistsError(Exception):
    """The op row of this write, or of another with its op_id, is there already: the fence held."""


@contextmanager
def connecting() -> Iterator[None]:
    """Translate what goes wrong before anything was sent.

    Raises:
        ConfigurationError: A person has to mend something.
        StorageUnavailableError: Nothing was sent.
    """
    try:
        yield
    except CasSessionError:
        raise
    except (ValueError, ssl.SSLCertVerificationError) as error:  # asyncpg's own, and int()'s for a port
        raise ConfigurationError(f"cannot connect to Postgres: {error}") from error
    except (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError, PoolTimeoutError) as error:
        raise StorageUnavailableError(_text("no connection to Postgres", error)) from error
    except DBAPIError as error:
        with connecting():
            raise _of_asyncpg(error) from error
    except asyncpg.PostgresError as error:
        if (error.sqlstate or "").startswith(BAD_STARTUP):
            raise ConfigurationError(f"Postgres refused the connection: {error}") from error
        if (known := _refusal(error)) is not None:
            raise known from error
        raise StorageUnavailableError(_text("no connection to Postgres", error)) from error


def translated(error: Exception, op_id: str | None) -> Exception:
    """What a caller gets for an error of a statement.

    Args:
        error: Of asyncpg.
        op_id: Of a write whose statement commits; None if what it did can be done twice, or is undone.
    """
    if isinstance(error, asyncpg.DataError):
        return StorageUnavailableError(_text("asyncpg refused", error), transient=False)
    if isinstance(error, asyncpg.PostgresError) and _was_answered(error):
        return _refusal(error) or StorageUnavailableError(_text("Postgres refused", error), transient=False)
    if _was_not_sent(error):
        return StorageUnavailableError(_text("the connection to Postgres was gone", error))
    if op_id is None:
        return StorageUnavailableError(_text("Postgres did not answer", error))
    return WriteOutcomeUnknownError(_text("Postgres did not answer", error), op_id=op_id)


def ends_connection(error: Exception) -> bool:
    """Whether the connection must not be used again.

    One to a server that became a standby would refuse every write; a new one may reach the primary. After
    a timeout asyncpg cancels the statement and the connection goes on.
    """
    if isinstance(error, asyncpg.PostgresError) and _was_answered(error):
        return str(error.sqlstate) == READ_ONLY
    return not isinstance(error, TimeoutError | asyncpg.DataError)


def _refusal(error: asyncpg.PostgresError) -> Exception | None:
    """What an ErrorResponse of the server means; None if it is none of the known ones."""
    code = error.sqlstate or ""
    if isinstance(error, asyncpg.UniqueViolationError) and error.constraint_name == OP_KEY:
        return OpExistsError()
    if code in TRANSIENT:
        return StorageUnavailableError(_text("Postgres refused", error))
    if code in NO_TABLES:
        return SchemaVersionError(f"{error}; bring the schema up to date with: cas-session migrate <url>")
    if code in POOLER_LOST_STATEMENT:
        return ConfigurationError(
            f"{error}; behind a transaction pooler add ?prepared_statement_cache_size=0 to the URL"
        )
    if code in CONFIGURATION:
        return ConfigurationError(f"Postgres refused: {error}")
    return None


def _was_answered(error: asyncpg.PostgresError) -> bool:
    """Whether the server said that it rolled the statement back, rather than that the connection ends."""
    code = error.sqlstate or ""
    if code in OUTCOME_UNKNOWN or code.startswith("08"):
        return False
    return not (code.startswith("57P") and code != "57P03")


def _was_not_sent(error: Exception) -> bool:
    """Whether asyncpg refused to send, for it knew the connection to be dead.

    The subclasses of InternalClientError are about what was received.
    """
    return isinstance(error, asyncpg.InterfaceError) or type(error) is asyncpg.InternalClientError


def _of_asyncpg(error: DBAPIError) -> BaseException:
    """The driver's error below SQLAlchemy's two wrappers."""
    cause: BaseException = error
    while cause.__cause__ is not None and not isinstance(cause, asyncpg.PostgresError | OSError):
        cause = cause.__cause__
    return cause


def _text(what: str, error: BaseException) -> str:
    return f"{what}: {str(error) or type(error).__name__}"
