"""The command line of the demonstration."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cas_session.cli.demo.settings import Settings
from cas_session.errors import ConfigurationError

if TYPE_CHECKING:
    from cas_session.cli.demo.verdict import Verdict
    from cas_session.snapshot import Item

BROKEN = 1  # exit status
INTERRUPTED = 130  # what shells give for SIGINT


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
        typer.Option("--input", metavar="FILE", help="Begin with this conversation: JSON Lines, an item each."),
    ] = None,
    model: Annotated[str, typer.Option(help="The model that compacts.")] = "gpt-5.1",
    workers: Annotated[int, typer.Option(min=1, max=64, help="Processes that append turns.")] = 4,
    turns: Annotated[int | None, typer.Option(min=1, help="Stop after so many turns.")] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Stop after so many seconds.")] = 10.0,
    seed: Annotated[int, typer.Option(help="Decides what the turns say.")] = 0,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the sessions in the database.")] = False,
) -> None:
    """Many processes, one conversation, a compaction in flight: show that nothing is lost.

    Exit status 0 if every promise held, 1 if not, 2 if it could not be run.
    """
    if naive and strict:
        raise ConfigurationError("--naive has no policy: give --naive or --strict")
    if api is Api.openai and not os.environ.get("OPENAI_API_KEY"):
        raise ConfigurationError("--api openai needs your key in the environment: OPENAI_API_KEY is not set")
    from cas_session.cli.demo.conversation import read_file, shipped

    path = input_file if input_file is not None else shipped()
    items = read_file(path)
    with _database(url, keep=keep) as database:
        settings = Settings(
            url=database,
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
            verdict = asyncio.run(_run(settings, items, path, keep=keep))
        except (KeyboardInterrupt, asyncio.CancelledError):
            typer.echo("interrupted: nothing was judged", err=True)
            raise typer.Exit(INTERRUPTED) from None
    if not verdict.held:
        raise typer.Exit(BROKEN)


@contextlib.contextmanager
def _database(url: str | None, *, keep: bool) -> Iterator[str]:
    """The database of the run; a new file goes afterwards, unless it is to be kept."""
    if url is not None:
        yield url
    elif keep:
        yield f"sqlite:///{Path(tempfile.mkdtemp(prefix='cas-session-')) / 'demo.db'}"
    else:
        with tempfile.TemporaryDirectory(prefix="cas-session-", ignore_cleanup_errors=True) as folder:
            yield f"sqlite:///{Path(folder) / 'demo.db'}"


async def _run(settings: Settings, items: list[Item], path: Path, *, keep: bool) -> Verdict:
    from rich.console import Console

    from cas_session.cli.demo.conversation import for_real_provider
    from cas_session.cli.demo.ledger import Ledger
    from cas_session.cli.demo.screen import Screen
    from cas_session.cli.demo.stage import Stage
    from cas_session.cli.demo.verdict import judge

    if sys.platform != "win32":  # so that a `kill` ends the processes as Ctrl-C does
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    if settings.api == "openai":
        items = for_real_provider(items)
    began = time.monotonic()
    console, ledger = Console(highlight=False), Ledger()
    screen, stage = Screen(console, settings), Stage(settings, items, ledger)
    screen.introduce(f"{len(items)} items of {path.name}")
    async with screen.watch(stage, ledger):
        outcome = await stage.run()
    verdict = judge(outcome)
    screen.conclude(verdict, time.monotonic() - began)
    return verdict
