"""The wheel, the sdist and an editable install, each in a fresh environment outside the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ["alembic", "alembic.ini", "cas_session", "tests", "LICENSE", "README.md", "pyproject.toml"]
UPGRADE = """
import asyncio, sys
from cas_session import migrate
asyncio.run(migrate.run(sys.argv[1], migrate.upgrade))
asyncio.run(migrate.run(sys.argv[1], lambda connection: print(migrate.current_revision(connection))))
print(migrate.__file__)
"""

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def environment(folder: Path, *packages: str | Path) -> Path:
    run(sys.executable, "-m", "venv", folder, cwd=folder.parent)
    run(folder / "bin/pip", "install", "-q", *packages, cwd=folder.parent)
    return folder / "bin/python"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, so that building leaves nothing in the checkout."""
    copy = tmp_path_factory.mktemp("checkout")
    unwanted = shutil.ignore_patterns("__pycache__", "*.db*")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=unwanted)
        else:
            shutil.copy(ROOT / name, copy)
    return copy


@pytest.fixture(scope="module")
def built(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the sdist, the wheel built from the sdist."""
    folder = tmp_path_factory.mktemp("built")
    run(sys.executable, "-m", "build", "-o", folder, checkout, cwd=folder)
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


def upgrade(python: Path, folder: Path) -> tuple[str, Path]:
    revision, module = run(python, "-c", UPGRADE, f"sqlite:///{folder}/chat.db", cwd=folder).split()
    return revision, Path(module)


def test_installed_wheel_migrates_from_code(built: tuple[Path, Path], tmp_path: Path) -> None:
    python = environment(tmp_path / "installed", built[0])

    revision, module = upgrade(python, tmp_path)

    assert revision == "0001_serves_0001"
    assert module.is_relative_to(tmp_path / "installed")


def test_editable_install_migrates_from_code_with_the_migrations_of_the_checkout(
    checkout: Path, tmp_path: Path
) -> None:
    python = environment(tmp_path / "editable", "-e", checkout)

    revision, module = upgrade(python, tmp_path)
    alembic = run(python, "-c", "import alembic; print(alembic.__file__)", cwd=checkout)

    assert revision == "0001_serves_0001"
    assert module.is_relative_to(checkout)
    assert "site-packages" in alembic
    assert not list((tmp_path / "editable").rglob("_alembic"))


def test_wheel_holds_the_package_and_its_migrations_and_no_tests(built: tuple[Path, Path]) -> None:
    names = zipfile.ZipFile(built[0]).namelist()

    assert {"cas_session", "cas_session-0.1.0.dist-info"} == {name.split("/")[0] for name in names}
    assert "cas_session/py.typed" in names
    assert "cas_session/cli/demo/conversation.jsonl" in names
    assert "cas_session/_alembic/env.py" in names
    assert "cas_session/_alembic/versions/0001_serves_0001.py" in names
    assert not [name for name in names if "__pycache__" in name]


def test_sdist_holds_migrations_and_tests(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert {"alembic.ini", "alembic/env.py", "alembic/script.py.mako", "tests/conftest.py"} <= names
    assert {"alembic/versions/0001_serves_0001.py", "tests/packaging/test_install.py"} <= names
