"""What a run says: a table of targets, a table of every case, JSON, a plot."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from benchmarks.measure import Case, Key
from benchmarks.million import ON_DISK
from benchmarks.scenarios import Bench
from benchmarks.targets import FLOOR, OURS, TARGETS

LIBRARIES = ("cas-session", "asyncpg", "aiosqlite", "sqlalchemy", "openai-agents")
WORDS: dict[Key, str] = {
    "p50_s": "time",
    "p99_s": "p99",
    "cpu_s": "client CPU",
    "per_s": "throughput",
    "bytes": "bytes",
}


def machine() -> dict[str, Any]:
    """What it ran on, and how busy that is."""
    return {
        "python": sys.version.split()[0],
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "libraries": {name: _version(name) for name in LIBRARIES},
    }


def print_all(console: Console, bench: Bench, about: dict[str, Any]) -> None:
    if targets := list(_judged(bench)):
        title = "Targets, as ratios within this run"
        if bench.quick:
            title += " (--quick: histories a hundredth as long, so nothing is judged)"
        table = Table("operation", "measure", "against", "measured", "target", "", title=title)
        for row in targets:
            reached = "not judged" if bench.quick else "reached" if row["reached"] else "NOT REACHED"
            table.add_row(
                f"{row['database']}: {row['case']}",
                WORDS[row["key"]],
                row["against"],
                f"{row['measured']:.2f}",
                row["wanted"],
                reached,
            )
        console.print(table)
    if bench.cases:
        console.print(_details(bench.cases))
    for case in bench.cases:
        for store, lost in case.lost.items():
            if lost:
                console.print(f"{case.database}: {case.name}: {store} LOST {lost} acknowledged appends")
    before, after = (about[when]["load"][0] for when in ("before", "after"))
    console.print(f"{os.cpu_count()} cores, load {before:.1f} before and {after:.1f} after")
    console.print(f"{_time(about['fsync_s'])} an fsync of 8 KB")
    for what, found in bench.facts.items():
        console.print(what, style="bold")
        for name, value in found.items():
            console.print(f"    {name}: {value:.3g}" if isinstance(value, float) else f"    {name}: {value}")


def write_json(file: Path, bench: Bench, about: dict[str, Any]) -> None:
    content = {
        "about": about,
        "quick": bench.quick,
        "targets": list(_judged(bench)),
        "cases": [asdict(case) for case in bench.cases],
        "facts": bench.facts,
    }
    file.write_text(json.dumps(content, indent=1))


def _judged(bench: Bench) -> Iterator[dict[str, Any]]:
    cases = {(case.database, case.name): case for case in bench.cases}
    for target in TARGETS:
        case = cases.get((target.database, target.case))
        measured = None if case is None else target.measured(case)
        if measured is not None:
            reached = None if bench.quick else target.is_reached(measured)
            yield {**asdict(target), "wanted": target.wanted, "measured": measured, "reached": reached}


def _details(cases: Iterable[Case]) -> Table:
    table = Table(
        Column("operation", no_wrap=True),
        Column("store", no_wrap=True),
        "median",
        "p99",
        "per s",
        "client CPU",
        f"time / {FLOOR}",
        f"CPU / {FLOOR}",
        f"time / {OURS}",
        "lost",
        "failed",
        title="Every case. Times are of this machine in this hour: only the ratios mean something",
    )
    for case in cases:
        for store in case.rounds if case.name != ON_DISK else ():  # that one is no time
            table.add_row(
                f"{case.database}: {case.name}",
                store,
                _time(case.median(store, "p50_s")),
                _time(case.median(store, "p99_s")),
                _number(case.median(store, "per_s")),
                _time(case.median(store, "cpu_s")),
                _ratio(case.ratio(store, FLOOR, "p50_s")),
                _ratio(case.ratio(store, FLOOR, "cpu_s")),
                _ratio(case.ratio(store, OURS, "p50_s")),
                str(case.lost.get(store, "")),
                str(case.failed.get(store, "")),
            )
        table.add_section()
    return table


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds * 1e6:.0f} us" if seconds < 0.001 else f"{seconds * 1e3:.4g} ms"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
