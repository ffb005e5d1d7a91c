from tests.session.fixtures import (
    client,
    endpoint,
    fresh_postgres,
    fresh_sqlite,
    migrated_file,
    one_postgres,
    other,
    patched,
    store,
)

__all__ = [
    "client",
    "endpoint",
    "fresh_postgres",
    "fresh_sqlite",
    "migrated_file",
    "one_postgres",
    "other",
    "patched",
    "store",
]
