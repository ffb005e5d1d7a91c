"""The migrations and the metadata build the same tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, text

from cas_session import migrate, schema
from tests import postgres

# Columns, constraints, indexes and storage parameters; compression aside.
POSTGRES_CATALOG = """
SELECT c.relname, 'column', a.attname, concat_ws(' ', a.attnum, format_type(a.atttypid, a.atttypmod),
       a.attnotnull, a.attidentity, pg_get_expr(d.adbin, d.adrelid), a.attstorage)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE c.relkind = 'r' AND c.relname LIKE 'cas\\_session%'
UNION ALL
SELECT c.relname, 'constraint', k.conname, pg_get_constraintdef(k.oid)
FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid WHERE c.relname LIKE 'cas\\_session%'
UNION ALL
SELECT tablename, 'index', indexname, indexdef FROM pg_indexes WHERE tablename LIKE 'cas\\_session%'
UNION ALL
SELECT relname, 'storage', relkind::text, reloptions::text FROM pg_class WHERE relname LIKE 'cas\\_session%'
ORDER BY 1, 2, 3
"""
SQLITE_CATALOG = """
SELECT t.name, 'column', c.name, c.cid || c.type || c."notnull" || ifnull(c.dflt_value, '') || c.pk
FROM sqlite_master t, pragma_table_info(t.name) c WHERE t.type = 'table'
UNION ALL
SELECT t.name, 'index', i.name, i."unique" || i.origin || i.partial || ' ' || (
    SELECT group_concat(x.name) FROM (SELECT name FROM pragma_index_info(i.name) ORDER BY seqno) x
) || ' ' || ifnull(s.sql, '')
FROM sqlite_master t, pragma_index_list(t.name) i LEFT JOIN sqlite_master s ON s.name = i.name
WHERE t.type = 'table'
ORDER BY 1, 2, 3
"""
COMPRESSION = """
SELECT a.attcompression = 'l',
       (SELECT 'lz4' = ANY (enumvals) FROM pg_settings WHERE name = 'default_toast_compression')
FROM pg_attribute a WHERE a.attrelid = 'cas_session_item'::regclass AND a.attname = 'data'
"""

Catalog = list[tuple[str, ...]]


def installs() -> list[Path]:
    """Every Postgres of this machine, the wheel's two and the distribution's."""
    try:
        wheel = sorted(postgres.wheel_install().parent.glob("pginstall*"))
    except postgres.PostgresMissingError:
        wheel = []
    return [*wheel, *sorted(Path("/usr/lib/postgresql").glob("*"))]


@pytest.fixture(scope="module", params=installs(), ids=lambda install: "-".join(install.parts[-2:]))
def installed_server(request: pytest.FixtureRequest) -> Iterator[str]:
    with postgres.EmbeddedServer(request.param) as server:
        yield server.url


def read_catalog(connection: Connection) -> Catalog:
    sql = SQLITE_CATALOG if connection.dialect.name == "sqlite" else POSTGRES_CATALOG
    rows: Catalog = [tuple(row) for row in connection.execute(text(sql))]
    return [row for row in rows if row[0] not in (schema.VERSION_TABLE, f"{schema.VERSION_TABLE}_pkc")]


async def assert_same_schema(migrated: str, created: str) -> None:
    catalogs: list[Catalog] = []
    differences: list[object] = []

    def look(connection: Connection) -> None:
        context = MigrationContext.configure(
            connection, opts={"version_table": schema.VERSION_TABLE, "compare_server_default": True}
        )
        differences.extend(compare_metadata(context, schema.metadata))
        catalogs.append(read_catalog(connection))

    await migrate.run(migrated, migrate.upgrade)
    await migrate.run(created, schema.metadata.create_all)
    await migrate.run(migrated, look)
    await migrate.run(created, look)

    assert not differences
    assert catalogs[1] == catalogs[0]
    text_of = "\n".join(" ".join(map(str, row)) for row in catalogs[0])
    assert "status = 'running'" in text_of
    assert all(f"{table.name} column" in text_of for table in schema.metadata.tables.values())


async def test_migrations_build_the_tables_of_the_metadata_on_sqlite(tmp_path: Path) -> None:
    await assert_same_schema(f"sqlite:///{tmp_path}/migrated.db", f"sqlite:///{tmp_path}/created.db")


async def test_migrations_build_the_tables_of_the_metadata_on_postgres(
    fresh_postgres: str, empty_postgres: str
) -> None:
    await assert_same_schema(fresh_postgres, empty_postgres)


async def test_migrations_build_the_tables_of_the_metadata_on_every_installed_postgres(
    installed_server: str,
) -> None:
    with postgres.new_database(installed_server) as one, postgres.new_database(installed_server) as two:
        await assert_same_schema(one, two)


async def test_items_are_compressed_with_lz4_where_the_server_has_it(installed_server: str) -> None:
    found: list[tuple[bool, bool]] = []
    with postgres.new_database(installed_server) as url:
        await migrate.run(url, migrate.upgrade)
        await migrate.run(
            url, lambda connection: found.extend(map(tuple, connection.execute(text(COMPRESSION))))
        )

    [(uses_lz4, has_lz4)] = found
    assert has_lz4 == uses_lz4


async def test_sessions_leave_room_for_updates_in_place(fresh_postgres: str) -> None:
    catalog: Catalog = []
    await migrate.run(fresh_postgres, lambda connection: catalog.extend(read_catalog(connection)))

    assert ("cas_session", "storage", "r", "{fillfactor=80}") in catalog
