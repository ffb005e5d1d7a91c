"""The project's own benchmarks run, on both databases. How long anything takes is not tested."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measure import Case
from benchmarks.targets import FLOOR, LITE, OURS, SA, TARGETS, Target

ROOT = Path(__file__).parents[2]


async def run(*arguments: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode()


@pytest.mark.slow
async def test_quick_run_compares_every_store_on_both_databases(postgres_url: str, tmp_path: Path) -> None:
    scenarios, out = "rewrite,one-session", str(tmp_path)
    command = "-m", "benchmarks", "--quick", "--only", scenarios, "--postgres", postgres_url, "--out", out
    status, output = await run(*command)

    assert status == 0, output
    written: dict[str, Any] = json.loads((tmp_path / "results.json").read_text())
    cases = {(case["database"], case["name"]): case for case in written["cases"]}
    for database, peers in (("postgres", {SA}), ("sqlite", {SA, LITE})):
        pops = cases[database, "pop"]["rounds"]
        assert set(pops) == {FLOOR, OURS, *peers}
        assert all(set(rounds) == {"0", "1"} for rounds in pops.values())
        crowd = cases[database, "4 x 8 tasks, one session"]
        assert (crowd["lost"][OURS], crowd["failed"][OURS]) == (0, 0)
        assert f"{database}: compact 10k to 10" in output
    assert {target["reached"] for target in written["targets"]} == {None}  # a quick run judges nothing
    assert (tmp_path / "results.png").exists()


async def test_what_is_not_installed_is_left_out_and_said(tmp_path: Path) -> None:
    without = "import sys, runpy; sys.modules |= {'agents': None, 'matplotlib': None}; "
    arguments = ["benchmarks", "--quick", "--only", "large", "--database", "sqlite", "--out", str(tmp_path)]
    program = f"{without}sys.argv = {arguments}; runpy.run_module('benchmarks', run_name='__main__')"
    status, output = await run("-c", program)

    assert status == 0, output
    assert "openai-agents is left out: pip install 'cas-session[bench]'" in output
    assert "No plot: pip install 'cas-session[bench]'" in output
    written = json.loads((tmp_path / "results.json").read_text())
    assert {store for case in written["cases"] for store in case["rounds"]} == {FLOOR, OURS}


async def test_unknown_scenario_is_refused_with_the_names_of_all() -> None:
    status, output = await run("-m", "benchmarks", "--only", "apend")

    assert status == 2
    assert "rewrite" in output


def test_ratio_is_the_median_of_the_quotients_of_each_round() -> None:
    case = Case("append", "sqlite")
    for number, (ours, floor) in enumerate([(2.0, 1.0), (30.0, 10.0), (5.0, 5.0)]):
        case.add(OURS, number, {"p50_s": ours})
        case.add(FLOOR, number, {"p50_s": floor})
    case.add(OURS, 3, {"p50_s": 99.0})  # the floor was not in this round

    assert case.ratio(OURS, FLOOR, "p50_s") == 2.0


def test_target_is_measured_in_its_own_terms() -> None:
    case = Case("append", "sqlite")
    case.add(OURS, 0, {"p50_s": 1.0, "per_s": 50.0})
    case.add(FLOOR, 0, {"p50_s": 4.0, "per_s": 10.0})
    faster = Target("sqlite", "append", FLOOR, faster=3)
    at_most = Target("sqlite", "append", FLOOR, at_most=0.2)
    throughput = Target("sqlite", "append", FLOOR, key="per_s", faster=5)

    assert (faster.measured(case), faster.is_reached(4.0)) == (4.0, True)
    assert (at_most.measured(case), at_most.is_reached(0.25)) == (0.25, False)
    assert (throughput.measured(case), throughput.is_reached(5.0)) == (5.0, True)


def test_each_target_is_there_once() -> None:
    keys = [(target.database, target.case, target.against, target.key) for target in TARGETS]

    assert len(set(keys)) == len(keys)
