"""What the README shows is run."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

from cas_session.testing.endpoint import ResponsesEndpoint

README = (Path(__file__).parents[2] / "README.md").read_text()


async def test_first_example_runs_as_it_is(tmp_path: Path) -> None:
    [example] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    async with ResponsesEndpoint() as endpoint:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            example,
            cwd=tmp_path,
            env=os.environ
            | {"OPENAI_BASE_URL": endpoint.base_url, "OPENAI_API_KEY": "none", "NO_PROXY": "*"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()

    assert process.returncode == 0, output.decode()
    assert output.decode().strip()
    assert (tmp_path / "chat.db").exists()


def test_set_up_is_one_line_each() -> None:
    commands = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)

    assert len(commands) == 2
    assert all(len(command.splitlines()) == 1 for command in commands)
