"""One picture of a run: how far each operation is from the floor, and what grows with what."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.growth import LENGTHS
from benchmarks.measure import Case
from benchmarks.scenarios import Bench
from benchmarks.targets import FLOOR, LITE, OURS, SA

LINES = {"append, by length": "o-", "read 20, by length": "s-", "compact to 10, by length": "^-"}
COLOURS = {OURS: "tab:blue", FLOOR: "tab:gray", SA: "tab:orange", LITE: "tab:red"}


def write_plot(file: Path, bench: Bench) -> bool:
    """Draw what there is; False if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return False
    figure = Figure(figsize=(15, 17), layout="constrained")
    axes = figure.subplot_mosaic("AB;AC;AD")
    _draw_ratios(axes["A"], bench.cases)
    for label, database in (("B", "postgres"), ("C", "sqlite")):
        _draw_growth(axes[label], database, [case for case in bench.cases if case.database == database])
    _draw_memory(axes["D"], bench.facts)
    figure.savefig(file, dpi=90)
    return True


def _draw_ratios(axis: Any, cases: Sequence[Case]) -> None:
    shown = [case for case in cases if case.ratio(OURS, FLOOR, "p50_s") is not None][::-1]
    for number, case in enumerate(shown):
        for store, colour in COLOURS.items():
            if store != FLOOR and (ratio := case.ratio(store, FLOOR, "p50_s")) is not None:
                axis.plot(ratio, number, "o", color=colour)
    axis.axvline(1, color=COLOURS[FLOOR])
    axis.set_xscale("log")
    axis.set_yticks(range(len(shown)), [f"{case.database}: {case.name}" for case in shown], fontsize=7)
    axis.set_title(f"time / {FLOOR}: {OURS} blue, {SA} orange, {LITE} red")
    axis.grid(axis="x")


def _draw_growth(axis: Any, database: str, cases: Sequence[Case]) -> None:
    """Each store beside itself at the shortest history: a flat line does not grow."""
    for case in cases:
        for store in (OURS, FLOOR) if case.name in LINES else ():
            points = [
                (length, ratio)
                for length in LENGTHS
                if (ratio := case.ratio(f"{store} at {length}", f"{store} at {LENGTHS[0]}", "p50_s"))
            ]
            label = f"{store}: {case.name.removesuffix(', by length')}"
            axis.loglog(*zip(*points, strict=True), LINES[case.name], color=COLOURS[store], label=label)
    axis.set_title(f"{database}: time by length of history, shortest = 1")
    axis.set_xlabel("items in the session")
    axis.set_ylim(0.2, None)
    axis.grid()
    if axis.lines:
        axis.legend(fontsize=8)


def _draw_memory(axis: Any, facts: dict[str, Any]) -> None:
    for name, kept in facts.items():
        for how, held in kept.items() if name.startswith("memory") else ():
            bounds = [int(bound) / 2**20 for bound in held]
            axis.plot(bounds, [value / 2**20 for value in held.values()], "o-", label=how)
    axis.set_title("memory that a store keeps")
    axis.set_xlabel("cache_bytes, MiB")
    axis.set_ylabel("MiB")
    axis.grid()
    if axis.lines:
        axis.legend(fontsize=8)
