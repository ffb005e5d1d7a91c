"""What docs/agents.md shows is run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from agents import SQLiteSession

from tests.session.items import said

PAGE = (Path(__file__).parents[2] / "docs" / "agents.md").read_text()


async def test_the_import_of_the_page_runs_as_it_is(tmp_path: Path) -> None:
    [example] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    theirs = SQLiteSession("talk", tmp_path / "chat.db")
    await theirs.add_items(said("a", "b"))  # type: ignore[arg-type]
    theirs.close()

    done = run(example, tmp_path)

    assert done.stdout == "1 2 0 0 0\n", done.stderr


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=120
    )
