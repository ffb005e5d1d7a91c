"""What the user sees: a live display on a terminal, plain lines elsewhere, and the table at the end."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from cas_session.cli.demo.ledger import Ledger
from cas_session.cli.demo.settings import Settings
from cas_session.cli.demo.stage import Stage
from cas_session.cli.demo.verdict import Row, Verdict
from cas_session.migrate import hide_password

REFRESH_S = 0.2
WIDTH = 110  # columns, where there is no terminal
LINE_EVERY_S = 2.0  # where there is no terminal
MODELS = {
    "local": "a local endpoint with the real wire format, 1 to 2 seconds a compaction",
    "openai": "the real one, with your key; what it seals only it can open",
}


class Screen:
    """The output of one run."""

    def __init__(self, console: Console, settings: Settings) -> None:
        if not console.is_terminal:
            console.width = max(console.width, WIDTH)
        self._console = console
        self._settings = settings

    def introduce(self, seed: str) -> None:
        """Say what is going to happen, and with what."""
        settings = self._settings
        self._console.print(
            f"[bold]{settings.workers} processes append turns to one conversation "
            "while another compacts it, again and again.\n"
            "A second conversation is cleared in the middle of its compactions.[/bold]\n"
        )
        grid = Table.grid(padding=(0, 2))
        grid.add_row("database", escape(hide_password(settings.url)))
        grid.add_row("begins with", escape(seed))
        grid.add_row("model", f"{escape(settings.model)}: {MODELS[settings.api]}")
        grid.add_row("rewrite", _rewrite(settings))
        self._console.print(grid)
        self._console.print()

    @contextlib.asynccontextmanager
    async def watch(self, stage: Stage, ledger: Ledger) -> AsyncIterator[None]:
        """Show the progress until the block ends."""
        show = self._live if self._console.is_terminal else self._lines
        task = asyncio.create_task(show(stage, ledger, time.monotonic()))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    def conclude(self, verdict: Verdict, seconds: float, *, stays: bool) -> None:
        """The table, and what it comes to."""
        table = Table.grid(padding=(0, 2))
        table.add_column(width=6)
        table.add_column(no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(overflow="fold")
        for row in verdict.rows:
            table.add_row(_mark(row), escape(row.name), f"[bold]{row.figure}[/bold]", escape(row.meaning))
        self._console.print()
        self._console.print(table)
        self._console.print()
        if verdict.held:
            self._console.print(f"[bold green]Every promise held[/bold green], in {seconds:.0f} seconds.")
        else:
            self._say_what_broke(verdict, seconds)
        if stays:
            ids = f"{self._settings.shared} and {self._settings.erased}"
            where = hide_password(self._settings.url)
            self._console.print(f"The sessions {ids} are in {where}", markup=False, soft_wrap=True)

    def _say_what_broke(self, verdict: Verdict, seconds: float) -> None:
        self._console.print(f"[bold red]Promises were broken[/bold red], in {seconds:.0f} seconds:")
        for broken in verdict.broken:
            self._console.print(f"  {broken}", markup=False)
        if self._settings.naive:
            self._console.print(
                "Nobody got an error. This is what reading, asking the model, clearing and writing do;\n"
                "the same load without --naive loses nothing."
            )

    async def _live(self, stage: Stage, ledger: Ledger, began: float) -> None:
        with Live(console=self._console, transient=True, auto_refresh=False) as live:
            while True:
                live.update(self._frame(stage, ledger, time.monotonic() - began), refresh=True)
                await asyncio.sleep(REFRESH_S)

    async def _lines(self, stage: Stage, ledger: Ledger, began: float) -> None:
        phase, said_at = "", 0.0
        while True:
            now = time.monotonic()
            if stage.phase != phase or (stage.load_began is not None and now - said_at >= LINE_EVERY_S):
                text = stage.phase if stage.phase != phase else self._summary(ledger)
                phase, said_at = stage.phase, now
                self._console.print(f"{now - began:5.1f} s  {text}", markup=False)
            await asyncio.sleep(REFRESH_S)

    def _frame(self, stage: Stage, ledger: Ledger, elapsed: float) -> Table:
        turns = ledger.turns(self._settings.shared)
        asked = "the model is being asked" if ledger.is_asked(self._settings.shared) else ""
        grid = Table.grid(padding=(0, 2))
        grid.add_column(width=11)
        grid.add_column(width=30)
        grid.add_row(f"{elapsed:.1f} s", self._bar(stage, len(turns)), stage.phase)
        grid.add_row("turns", str(len(turns)), "acknowledged")
        grid.add_row("reads", str(ledger.reads), f"{len(ledger.faults)} invalid, torn or stale")
        grid.add_row("compactions", str(ledger.statuses(self._settings.shared).total()), asked)
        grid.add_row("clears", str(len(ledger.clears)), "in the middle of a compaction")
        return grid

    def _bar(self, stage: Stage, turns: int) -> ProgressBar:
        passed = 0.0
        if stage.load_began is not None:
            passed = min((time.monotonic() - stage.load_began) / stage.load_s, 1)
        if self._settings.turns is not None:
            passed = max(passed, turns / self._settings.turns)
        return ProgressBar(total=1, completed=passed, width=30)

    def _summary(self, ledger: Ledger) -> str:
        return (
            f"{len(ledger.turns(self._settings.shared))} turns, {ledger.reads} reads, "
            f"{ledger.statuses(self._settings.shared).total()} compactions, {len(ledger.clears)} clears"
        )


def _rewrite(settings: Settings) -> str:
    if settings.naive:
        return "by hand: read, ask the model, clear, write (--naive)"
    return "CasSession.compact, " + ("CompactionPolicy.strict()" if settings.strict else "default policy")


def _mark(row: Row) -> str:
    if row.kept is None:
        return ""
    return "[green]kept[/green]" if row.kept else "[bold red]BROKEN[/bold red]"
