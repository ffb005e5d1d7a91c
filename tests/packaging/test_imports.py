"""What importing the package loads, and in which direction its modules import one another."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "cas_session"
FILES = sorted(PACKAGE.rglob("*.py"))

# Each may import from its own layer and those before it, at the top of a module.
LAYERS = [
    ["errors", "snapshot", "schema"],
    ["codec", "retry", "events", "driver", "checks", "migrate"],
    ["drivers", "writes", "backend", "store"],
    ["verbs", "session", "compaction", "compactors", "importers"],
    ["testing", "cli"],
]
UNNAMED = 2  # the layer of any other module
FORBIDDEN = {  # besides the layers
    "drivers": ["retry", "events", "store", "backend", "writes"],
    "store": ["drivers"],
}


def layer(module: str) -> int:
    part = module.split(".")[1]
    return next((number for number, parts in enumerate(LAYERS) if part in parts), UNNAMED)


def imports(file: Path) -> Iterator[str]:
    """The modules of the package that this one imports when it is loaded: not for types, not in functions."""
    todo: list[ast.stmt] = list(ast.parse(file.read_text()).body)
    while todo:
        statement = todo.pop()
        if isinstance(statement, ast.ImportFrom) and statement.module == "cas_session":
            yield from (f"cas_session.{name.name}" for name in statement.names)
        elif isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("cas_session."):
            yield statement.module or ""
        elif isinstance(statement, ast.Import):
            yield from (name.name for name in statement.names if name.name.startswith("cas_session."))
        elif isinstance(statement, ast.Try | ast.With):
            todo.extend(statement.body)


@pytest.mark.parametrize(
    "file", sorted(PACKAGE.rglob("*.py")), ids=lambda file: str(file.relative_to(PACKAGE))
)
def test_modules_import_only_from_their_own_layer_and_those_below(file: Path) -> None:
    name = ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts)
    if file == PACKAGE / "__init__.py":
        return
    part, found = name.split(".")[1], list(imports(file))

    assert not [module for module in found if layer(module) > layer(name)]
    assert not [module for module in found if module.split(".")[1] in FORBIDDEN.get(part, [])]


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    """The modules that importing the package loads."""
    program = "import sys, cas_session; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=PACKAGE.parent,
        timeout=60,
        check=True,
        capture_output=True,
        text=True,
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "library",
    [
        "agents",
        "aiosqlite",
        "alembic",
        "asyncpg",
        "openai",
        "pydantic",
        "rich",
        "sqlalchemy.orm",
        "starlette",
        "typer",
        "uvicorn",
    ],
)
def test_import_of_the_package_does_not_load(loaded: set[str], library: str) -> None:
    """What is used by some only is loaded where it is used."""
    assert "cas_session" in loaded
    assert library not in loaded
