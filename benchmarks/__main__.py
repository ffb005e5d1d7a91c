"""The command: ``python -m benchmarks``, in the checkout."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks import contention, growth, million, plot, report, scenarios, split
from benchmarks.databases import DATABASES, Database, Databases, fsync_s, postgres_server
from benchmarks.peers import missing
from benchmarks.scenarios import Bench
from benchmarks.writers import Writers
from tests.postgres import URL_VARIABLE, PostgresMissingError

Scenario = Callable[[Bench, Database], Coroutine[Any, Any, None]]
SCENARIOS: dict[str, Scenario] = {
    "append": scenarios.append,
    "read": scenarios.read,
    "rewrite": scenarios.rewrite,
    "turns": scenarios.turns,
    "large": scenarios.large_writes,
    "one-session": contention.one_session,
    "many-sessions": contention.many_sessions,
    "million": million.million,
    "growth": growth.growth,
    "memory": growth.memory,
    "start": growth.start,
    "split": split.split,
}
ROUNDS, QUICK_ROUNDS = 15, 2
RESULTS = Path(__file__).with_name("results")


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    only: Annotated[str, typer.Option(help=f"Some of: {', '.join(SCENARIOS)}.", metavar="NAME,...")] = "",
    database: Annotated[str, typer.Option(help="Only this one: postgres or sqlite.")] = "",
    rounds: Annotated[int, typer.Option(min=1, help="More rounds, steadier ratios.")] = ROUNDS,
    quick: Annotated[bool, typer.Option("--quick", help="Short histories: shows that all works.")] = False,
    out: Annotated[Path, typer.Option(help="The folder for results.json and the plots.")] = RESULTS,
    postgres: Annotated[
        str | None,
        typer.Option(
            envvar=URL_VARIABLE, help="A server's admin database; else one is started.", metavar="URL"
        ),
    ] = None,
) -> None:
    """Compare cas_session with hand-written SQL and with other session stores."""
    names = _chosen(only, SCENARIOS, "--only")
    databases: list[Database] = [
        one for one in DATABASES if one in _chosen(database, DATABASES, "--database")
    ]
    console = Console(width=None if Console().is_terminal else 180, markup=False, highlight=False)
    for library in missing():
        console.print(f"{library} is left out: pip install 'cas-session[bench]' installs it.")
    with ExitStack() as stack:
        server = None
        if "postgres" in databases:
            try:
                server = stack.enter_context(postgres_server(postgres))
            except PostgresMissingError as error:
                databases.remove("postgres")
                console.print(f"Postgres is left out: {error}")
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cas-bench-")))
        writers = stack.enter_context(Writers())
        bench = Bench(Databases(folder, server), writers, QUICK_ROUNDS if quick else rounds, quick)
        about: dict[str, Any] = {"before": report.machine(), "fsync_s": fsync_s(folder)}
        out.mkdir(parents=True, exist_ok=True)
        for name in names:
            for one in databases:
                began = time.monotonic()
                asyncio.run(SCENARIOS[name](bench, one))
                console.print(f"{name} on {one}: {time.monotonic() - began:.0f} s")
                report.write_json(out / "results.json", bench, about)
    about["after"] = report.machine()
    report.write_json(out / "results.json", bench, about)
    report.print_all(console, bench, about)
    console.print(f"Written: {out / 'results.json'}")
    if plot.write_plot(out / "results.png", bench):
        console.print(f"Drawn: {out / 'results.png'}")
    else:
        console.print("No plot: pip install 'cas-session[bench]' installs matplotlib.")


def _chosen(given: str, offered: tuple[str, ...] | dict[str, Scenario], option: str) -> list[str]:
    names = [name for name in given.split(",") if name] or list(offered)
    if unknown := set(names) - set(offered):
        raise typer.BadParameter(f"{option} takes {', '.join(offered)}, not {', '.join(sorted(unknown))}")
    return names


if __name__ == "__main__":
    app()
