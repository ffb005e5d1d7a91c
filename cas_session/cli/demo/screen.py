"""What the user sees: a live display on a terminal, plain lines elsewhere, and the table at the end."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cas_session.cli.demo.ledger import Ledger
from cas_session.cli.demo.settings import Settings
from cas_session.cli.demo.stage import Stage
from cas_session.cli.demo.verdict import Row, Verdict
from cas_session.migrate import hide_password

REFRESH_S = 0.2
LINE_EVERY_S = 2.0  # where there is no terminal
MODELS = {
    "local": "a local endpoint with the real wire format, 1 to 2 seconds a compaction",
    "openai": "the real one, with your key; what it seals only it can open",
}


class Screen:
    """The output of one run."""

    def __init__(self, console: Console, settings: Settings) -> None:
        self._console = console
        self._settings = settings

    def introduce(self, seed: str) -> None:
        settings = self._settings
        self._console.print(
            f"[bold]{settings.workers} processes append turns to one conversation while another compacts it, "
            "again and again.\nA second conversation is cleared in the middle of its compactions.[/bold]"
        )
        grid = Table.grid(padding=(0, 2))
        grid.add_row("  database", escape(hide_password(settings.url)))
        grid.add_row("  begins with", escape(seed))
        grid.add_row("  model", f"{escape(settings.model)}: {MODELS[settings.api]}")
        grid.add_row("  rewrite", _rewrite(settings))
        self._console.print(grid)

    @contextlib.asynccontextmanager
    async def watch(self, stage: Stage, ledger: Ledger) -> AsyncIterator[None]:
        """Show the progress until the block ends."""
        terminal = self._console.is_terminal
        task = asyncio.create_task(self._live(stage, ledger) if terminal else self._lines(stage, ledger))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    def conclude(self, verdict: Verdict, seconds: float) -> None:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0))
        table.add_column("", width=6)
        table.add_column("")
        table.add_column("", justify="right")
        table.add_column("", overflow="fold")
        for row in verdict.rows:
            table.add_row(_mark(row), escape(row.name), f"[bold]{row.figure}[/bold]", escape(row.meaning))
        self._console.print()
        self._console.print(table)
        self._console.print()
        if verdict.held:
            self._console.print(f"[bold green]Every promise held[/bold green], in {seconds:.0f} seconds.")
            return
        self._console.print(f"[bold red]Broken[/bold red], in {seconds:.0f} seconds:")
        for broken in verdict.broken:
            self._console.print(f"  {broken}", markup=False)
        if self._settings.naive:
            self._console.print(
                "This is what reading, asking the model, clearing and writing again does. "
                "Run it once more without --naive."
            )

    async def _live(self, stage: Stage, ledger: Ledger) -> None:
        began = time.monotonic()
        with Live(console=self._console, transient=True, auto_refresh=False) as live:
            while True:
                live.update(self._frame(stage, ledger, time.monotonic() - began), refresh=True)
                await asyncio.sleep(REFRESH_S)

    async def _lines(self, stage: Stage, ledger: Ledger) -> None:
        began = time.monotonic()
        while True:
            elapsed = time.monotonic() - began
            self._console.print(f"{elapsed:5.1f} s  {stage.phase}: {self._summary(ledger)}", markup=False)
            await asyncio.sleep(LINE_EVERY_S)

    def _frame(self, stage: Stage, ledger: Ledger, elapsed: float) -> Group:
        settings = self._settings
        turns = ledger.turns(settings.shared)
        done = len(turns) if settings.turns is not None else _seconds_of_load(ledger, settings)
        total = settings.turns if settings.turns is not None else settings.seconds
        bar = Table.grid(padding=(0, 1))
        bar.add_row(f"{elapsed:5.1f} s", ProgressBar(total=float(total), completed=done, width=40), stage.phase)
        asked = "the model is being asked" if ledger.is_asked(settings.shared) else ""
        grid = Table.grid(padding=(0, 2))
        grid.add_row("  turns", str(len(turns)), "acknowledged")
        grid.add_row("  reads", str(ledger.reads), f"{len(ledger.faults)} invalid, torn or stale")
        grid.add_row("  compactions", str(ledger.statuses(settings.shared).total()), asked)
        grid.add_row("  clears", str(len(ledger.clears)), "in the middle of a compaction")
        return Group(Text(), bar, grid)

    def _summary(self, ledger: Ledger) -> str:
        settings = self._settings
        return (
            f"{len(ledger.turns(settings.shared))} turns, {ledger.reads} reads, "
            f"{ledger.statuses(settings.shared).total()} compactions, {len(ledger.clears)} clears"
        )


def _rewrite(settings: Settings) -> str:
    if settings.naive:
        return "by hand: read, ask the model, clear, write (--naive)"
    return f"CasSession.compact, {'CompactionPolicy.strict()' if settings.strict else 'as it comes'}"


def _mark(row: Row) -> str:
    if row.kept is None:
        return ""
    return "[green]kept[/green]" if row.kept else "[bold red]BROKEN[/bold red]"


def _seconds_of_load(ledger: Ledger, settings: Settings) -> float:
    if not ledger.appends:
        return 0.0
    return min(time.monotonic() - ledger.appends[0].began, settings.seconds)
