"""What `cas-session` offers. A command imports what it needs when it runs."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Annotated

import typer

from cas_session.cli.demo.command import demo
from cas_session.cli.transfer import export, import_
from cas_session.cli.urls import UrlArgument, is_missing_file

app = typer.Typer(
    name="cas-session",
    help="Conversations of agent servers on SQLite and Postgres.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cas-session {version('cas-session')}")
        raise typer.Exit


@app.callback()
def cas_session(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


app.command()(demo)
app.command("import")(import_)
app.command()(export)


@app.command()
def migrate(
    url: UrlArgument,
    check: Annotated[bool, typer.Option("--check", help="Change nothing; exit status 2 if needed.")] = False,
) -> None:
    """Bring the tables of a database to the schema of this release."""
    from cas_session.migrate import check_revision, hide_password

    if check and is_missing_file(url):
        check_revision(None, url)
    revision = asyncio.run(_migrate(url, change=not check))
    typer.echo(f"{hide_password(url)} is at {revision}")


async def _migrate(url: str, *, change: bool) -> str | None:
    from cas_session.store import SessionStore

    async with SessionStore(url, migrate=change) as store:
        return await store.backend.driver.schema_revision()
