"""`cas-session import` and `cas-session export`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from cas_session.cli.urls import UrlArgument, is_missing_file
from cas_session.errors import ConfigurationError

if TYPE_CHECKING:
    from cas_session.importers import ExportReport, ImportReport, Rejected, Source
    from cas_session.store import SessionStore

INCOMPLETE = 1  # exit status
INTERRUPTED = 130  # what shells give for SIGINT
LINE_EVERY_S = 2.0  # of plain progress
SHOWN = 20  # rejections in a summary
SHOWN_CHARS = 200  # of the id and of the text of one
SQLITE_HEADER = b"SQLite format 3\0"


class Order(StrEnum):
    """How the SDK's session reads."""

    id = "id"
    created_at = "created_at"


def import_(
    source: Annotated[
        str, typer.Argument(help="sqlite:///FILE, postgresql://..., a SQLite file, or a file of JSON Lines.")
    ],
    to: Annotated[
        str, typer.Option("--to", envvar="CAS_SESSION_URL", show_envvar=True, help="Where they go.")
    ],
    messages_table: Annotated[
        str, typer.Option(help="The messages table of the SDK's sessions.")
    ] = "agent_messages",
    order: Annotated[
        Order | None,
        typer.Option(help="How the SDK reads it: id (SQLiteSession) or created_at (SQLAlchemySession)."),
    ] = None,
    session_id: Annotated[
        str | None, typer.Option(help="Each line of the file is a bare item of this conversation.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The source's identity, if its address changes between two runs.")
    ] = None,
    append: Annotated[bool, typer.Option("--append", help="Also behind what others wrote.")] = False,
    leave_out_corrupt: Annotated[
        bool, typer.Option("--leave-out-corrupt", help="Import a conversation without its corrupt rows.")
    ] = False,
    rejects: Annotated[
        Path | None, typer.Option(help="Write what is rejected to this file, as JSON Lines.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read and compare, write nothing.")] = False,
) -> None:
    """Take conversations over from openai-agents' tables or from JSON Lines.

    It can be broken off and run again: what is there is not written twice, and a source that has grown is
    continued. Exit status 0 if everything is there, 1 if something was rejected, 2 if it could not be run.
    """
    conversations = _source(source, messages_table, order, session_id, name)
    work = _import(conversations, to, rejects, append=append, leave_out=leave_out_corrupt, dry_run=dry_run)
    try:
        report = asyncio.run(work)
    except KeyboardInterrupt:
        typer.echo("interrupted: run it again to go on", err=True)
        raise typer.Exit(INTERRUPTED) from None
    typer.echo(("nothing was written; would have " if report.dry_run else "") + _summary(report))
    _say_reasons(report.reasons, report.rejected + report.refused)
    raise typer.Exit(0 if report.complete else INCOMPLETE)


def export(
    url: UrlArgument,
    session: Annotated[
        list[str] | None, typer.Option(help="Only this session; give it again for others.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A file, which appears when it is whole.")
    ] = None,
) -> None:
    """Write sessions as JSON Lines, which `cas-session import` reads back.

    Exit status 0 if everything was written, 1 if a session has a corrupt row and was left out, 2 if it could
    not be run.
    """
    if is_missing_file(url):
        raise ConfigurationError(f"there is no database {url!r}")
    with _written(output) as file:
        report = asyncio.run(_export(url, file, session))
    typer.echo(f"exported {report.sessions} sessions, {report.items} items", err=True)
    _say_reasons(report.reasons, report.refused)
    raise typer.Exit(0 if report.complete else INCOMPLETE)


def _source(
    address: str, messages_table: str, order: Order | None, session_id: str | None, name: str | None
) -> Source:
    from cas_session.importers import JsonLines, SdkTables

    if "://" not in address:
        if not _is_sqlite(Path(address)):
            try:
                return JsonLines(address, session_id=session_id, name=name)
            except ValueError as error:
                raise ConfigurationError(f"--session-id: {error}") from error
        address = f"sqlite:///{Path(address).absolute()}"
    if session_id is not None:
        raise ConfigurationError("--session-id is for a file of bare items; tables name their conversations")
    return SdkTables(address, messages_table=messages_table, order=order.value if order else None, name=name)


def _is_sqlite(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            return opened.read(len(SQLITE_HEADER)) == SQLITE_HEADER
    except OSError as error:
        raise ConfigurationError(f"cannot read {str(file)!r}: {error.strerror}") from error


async def _import(
    source: Source, to: str, rejects: Path | None, *, append: bool, leave_out: bool, dry_run: bool
) -> ImportReport:
    from cas_session.importers import import_sessions

    with _rejects(rejects) as write_rejected, _progress() as show:
        async with _target(to, dry_run=dry_run) as store:
            return await import_sessions(
                source,
                store,
                append=append,
                corrupt="leave_out" if leave_out else "refuse",
                dry_run=dry_run,
                on_rejected=write_rejected,
                on_progress=lambda report: show(_summary(report)),
            )


async def _export(url: str, file: TextIO, session_ids: list[str] | None) -> ExportReport:
    from cas_session.importers import export_sessions
    from cas_session.store import SessionStore

    async with SessionStore(url, migrate=False, maintenance_interval_s=None) as store:
        with _progress() as show:
            return await export_sessions(
                store,
                file.write,
                session_ids=session_ids,
                on_progress=lambda report: show(f"{report.sessions} sessions, {report.items} items"),
            )


def _target(url: str, *, dry_run: bool) -> SessionStore:
    from cas_session.store import SessionStore

    if dry_run and is_missing_file(url):
        url = "sqlite://"  # it would be made: an empty one, in memory
        return SessionStore(url, maintenance_interval_s=None)
    return SessionStore(url, migrate=False if dry_run else None, maintenance_interval_s=None)


@contextlib.contextmanager
def _written(output: Path | None) -> Iterator[TextIO]:
    """A file that appears under its name when the block ends without an error, or standard output."""
    if output is None:
        with open(sys.stdout.fileno(), "w", encoding="utf-8", newline="\n", closefd=False) as file:
            yield file
        return
    part = output.with_name(f"{output.name}.part")
    try:
        with part.open("w", encoding="utf-8", newline="\n") as file:
            yield file
        part.replace(output)
    except OSError as error:
        raise ConfigurationError(f"cannot write {str(output)!r}: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def _rejects(path: Path | None) -> Iterator[Callable[[Rejected], object]]:
    if path is None:
        yield lambda rejected: None
        return
    try:
        file = path.open("w", encoding="utf-8", newline="\n")
    except OSError as error:
        raise ConfigurationError(f"cannot write {str(path)!r}: {error.strerror}") from error
    with file:
        yield lambda rejected: file.write(json.dumps(asdict(rejected)) + "\n")


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], object]]:
    """Shows where the work is: on a terminal a line that changes, elsewhere a line every few seconds."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True, highlight=False)
    if console.is_terminal:
        with console.status("reading") as status:
            yield lambda text: status.update(escape(text))
        return
    said_at = time.monotonic()

    def say(text: str) -> None:
        nonlocal said_at
        if time.monotonic() - said_at >= LINE_EVERY_S:
            said_at = time.monotonic()
            console.print(text, markup=False, soft_wrap=True)

    yield say


def _summary(report: ImportReport) -> str:
    text = f"imported {report.items} items in {report.sessions} sessions"
    text += f"; {report.already_there} items were there"
    if not report.complete:
        text += f"; {report.rejected} rows rejected, {report.refused} conversations left as they are"
    return text


def _say_reasons(reasons: tuple[Rejected, ...], count: int) -> None:
    for rejected in reasons[:SHOWN]:
        place = rejected.table if rejected.row is None else f"{rejected.table}, row {rejected.row}"
        session = (
            f", session {rejected.session_id[:SHOWN_CHARS]!r}" if rejected.session_id is not None else ""
        )
        text = f": {rejected.text[:SHOWN_CHARS]!r}" if rejected.text is not None else ""
        typer.echo(f"{place}{session}: {' '.join(rejected.reason.split())}{text}", err=True)
    if count > SHOWN:
        typer.echo(f"and {count - min(SHOWN, len(reasons))} more", err=True)
