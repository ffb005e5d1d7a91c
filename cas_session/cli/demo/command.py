"""The command line of the demonstration."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from cas_session.cli.demo.settings import Settings
from cas_session.errors import CasSessionError, ConfigurationError

if TYPE_CHECKING:
    from cas_session.snapshot import Item

BROKEN = 1  # exit status
INTERRUPTED = 130  # what shells give for SIGINT
TERMINATED = 143  # and for SIGTERM


class Api(StrEnum):
    """Who compacts."""

    local = "local"
    openai = "openai"


def demo(
    url: Annotated[
        str | None,
        typer.Option(help="The database: sqlite:///FILE or postgresql://...; by default a new SQLite file."),
    ] = None,
    naive: Annotated[bool, typer.Option("--naive", help="Rewrite by hand: read, ask, clear, write.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Use CompactionPolicy.strict().")] = False,
    api: Annotated[Api, typer.Option(help="Who compacts; openai needs OPENAI_API_KEY.")] = Api.local,
    input_file: Annotated[
        Path | None,
        typer.Option(
            "--input", metavar="FILE", help="Begin with this conversation: JSON Lines, an item each."
        ),
    ] = None,
    model: Annotated[str, typer.Option(help="The model that compacts.")] = "gpt-5.1",
    workers: Annotated[int, typer.Option(min=1, max=64, help="Processes that append turns.")] = 3,
    turns: Annotated[int | None, typer.Option(min=1, help="Stop after so many turns.")] = None,
    seconds: Annotated[
        float | None, typer.Option(min=0.1, help="Stop after so many seconds; by default 10, openai 60.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides what the turns say.")] = 0,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the sessions in the database.")] = False,
) -> None:
    """Many processes, one conversation, a compaction in flight: show that nothing is lost.

    Exit status 0 if every promise held, 1 if not, 2 if it could not be run.
    """
    began = time.monotonic()
    if naive and strict:
        raise ConfigurationError("--naive compacts by hand and has no policy: give --naive or --strict")
    if api is Api.openai and not os.environ.get("OPENAI_API_KEY"):
        raise ConfigurationError("--api openai needs your key in the environment: OPENAI_API_KEY is not set")
    if url is not None:
        _check_shared(url)
    from cas_session.cli.demo.files import read_file, shipped

    path = input_file if input_file is not None else shipped()
    items = read_file(path)
    folder = Path(tempfile.mkdtemp(prefix="cas-session-")) if url is None else None
    settings = Settings(
        url=url if url is not None else f"sqlite:///{folder}/demo.db",
        run=secrets.token_hex(4),
        api=api.value,
        model=model,
        naive=naive,
        strict=strict,
        workers=workers,
        turns=turns,
        seconds=seconds,
        seed=seed,
    )
    try:
        held, kept = asyncio.run(_run(settings, items, path, began, keep=keep))
    except KeyboardInterrupt:
        _give_up(folder, INTERRUPTED)
    except asyncio.CancelledError:
        _give_up(folder, TERMINATED)
    except BaseException:
        _forget(folder)
        raise
    if not kept:
        _forget(folder)
    raise typer.Exit(0 if held else BROKEN)


def _check_shared(url: str) -> None:
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    with contextlib.suppress(ArgumentError, ValueError):  # the store says what is wrong with it
        address = make_url(url)
        file = address.database or ":memory:"
        if address.get_backend_name() == "sqlite" and (":memory:" in file or "vfs=memdb" in url):
            raise ConfigurationError(
                "--url: processes cannot share a database in memory; give sqlite:///FILE"
            )


def _give_up(folder: Path | None, status: int) -> NoReturn:
    _forget(folder)
    typer.echo("interrupted: nothing was judged", err=True)
    raise typer.Exit(status) from None


def _forget(folder: Path | None) -> None:
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


async def _run(
    settings: Settings, items: list[Item], path: Path, began: float, *, keep: bool
) -> tuple[bool, bool]:
    """Run it; say whether every promise held, and whether the sessions were left in the database."""
    from rich.console import Console

    from cas_session.cli.demo.ledger import Ledger
    from cas_session.cli.demo.screen import Screen
    from cas_session.cli.demo.stage import Stage, prepare, remove
    from cas_session.cli.demo.turns import for_real_provider
    from cas_session.cli.demo.verdict import judge

    _end_as_by_interrupt()
    if settings.api == "openai":
        items = for_real_provider(items)
    ledger, stays = Ledger(), keep
    screen, stage = Screen(Console(highlight=False), settings), Stage(settings, items, ledger, began)
    await prepare(settings)
    screen.introduce(f"{len(items)} items of {path.name}")
    try:
        async with screen.watch(stage, ledger):
            outcome = await stage.run()
        verdict = judge(outcome)
        stays = keep or not (verdict.held or settings.naive)  # what broke a promise is worth a look
        screen.conclude(verdict, time.monotonic() - began, stays=stays)
    finally:
        if not stays:
            with contextlib.suppress(CasSessionError):
                await remove(settings)
    return verdict.held, stays


def _end_as_by_interrupt() -> None:
    """A `kill` ends the run as Ctrl-C does."""
    task = asyncio.current_task()
    if task is not None and sys.platform != "win32":
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
