"""The lower bounds of pyproject.toml are those that `.ci/run` tests with."""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]


def lower_bounds() -> dict[str, Version]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    requirements = map(Requirement, [*project["dependencies"], *extras["cli"], *extras["demo"]])
    return {
        requirement.name: Version(specifier.version)
        for requirement in requirements
        for specifier in requirement.specifier
        if specifier.operator == ">="
    }


def test_every_lower_bound_of_what_users_install_is_tested() -> None:
    lines = (ROOT / "tests/lower-bounds.txt").read_text().splitlines()
    tested = dict(line.split("==") for line in lines if line and not line.startswith("#"))

    assert lower_bounds() == {name: Version(tested.get(name, "0")) for name in lower_bounds()}
