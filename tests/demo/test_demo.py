"""The demonstration as users run it: a command with a database, an output and an exit status."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cas_session import SessionStore
from cas_session.testing.endpoint import ResponsesEndpoint

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-c", "from cas_session.cli import main; main()", "demo"]
SMALL = ["--workers", "2", "--seconds", "1"]
TIMEOUT_S = 300  # the machine may be busy; a run takes a few seconds


def demo(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def figures(output: str) -> dict[str, tuple[str, int]]:
    """The table: what each row says, and its number."""
    rows = re.findall(r"^(kept|BROKEN|) +(\w[\w ,]+?) {2,}(\d+)  ", output, re.MULTILINE)
    return {name: (mark, int(number)) for mark, name, number in rows}


def children_of(pid: int) -> set[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return {int(child) for child in text.split()}


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_every_promise_holds(database_url: str) -> None:
    """On both databases; the table has a row for each promise, and every turn is found."""
    done = demo("--url", database_url, *SMALL)
    table = figures(done.stdout)

    assert done.returncode == 0, done.stdout + done.stderr
    assert table["turns acknowledged"] == table["turns found"]
    assert table["turns found"][1] > 0
    for promise in (
        "lost",
        "duplicated",
        "altered",
        "version gaps",
        "undone clears",
        "invalid histories",
        "torn or stale reads",
    ):
        assert table[promise] == ("kept", 0)
    assert table["compactions"][1] >= 1
    assert table["model calls"][1] >= 4
    assert "slowest append, compacting" in done.stdout
    assert "Every promise held" in done.stdout


def test_rewriting_by_hand_loses_turns_and_undoes_clears(database_url: str) -> None:
    """The same load, and exit status 1."""
    done = demo("--url", database_url, "--naive", *SMALL)
    table = figures(done.stdout)

    assert done.returncode == 1, done.stdout + done.stderr
    assert table["turns found"][1] < table["turns acknowledged"][1]
    assert table["lost"][0] == "BROKEN"
    assert table["lost"][1] > 0
    assert table["undone clears"][0] == "BROKEN"
    assert table["undone clears"][1] >= 3
    assert "Promises were broken" in done.stdout


def test_the_strict_policy_keeps_every_promise_as_well(fresh_sqlite: str) -> None:
    done = demo("--url", fresh_sqlite, "--strict", *SMALL)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "CompactionPolicy.strict()" in done.stdout
    assert figures(done.stdout)["lost"] == ("kept", 0)


def test_a_number_of_turns_is_met_exactly(fresh_sqlite: str) -> None:
    """Without a URL the file is the run's own and goes with it; with --input it begins with that file."""
    done = demo("--workers", "3", "--turns", "31")

    assert done.returncode == 0, done.stdout + done.stderr
    assert figures(done.stdout)["turns found"] == ("kept", 31)
    (file,) = re.findall(r"sqlite:///(/\S+)", done.stdout)
    assert not Path(file).parent.exists()


async def test_the_conversation_begins_with_the_file(fresh_sqlite: str, tmp_path: Path) -> None:
    """Opaque content of another server is sealed anew; --keep leaves the sessions to be looked at."""
    file = tmp_path / "chat.jsonl"
    first = {"role": "user", "content": "begin here"}
    sealed = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAAAforeign"}
    said = {"role": "assistant", "content": "as you like"}
    file.write_text("".join(json.dumps(item) + "\n" for item in (first, sealed, said)))

    done = demo("--url", fresh_sqlite, "--input", str(file), "--keep", *SMALL)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 items of chat.jsonl" in done.stdout
    assert figures(done.stdout)["items sealed anew"] == ("", 1)
    async with SessionStore(fresh_sqlite) as store:
        sessions = {info.session_id: info for info in await store.list_sessions()}
        assert len(sessions) == 2
        shared = next(name for name in sessions if name.endswith("shared"))
        begins = (await store.session(shared).snapshot()).items[0]
    assert begins["content"][0]["text"] == "begin here"


async def test_nothing_of_a_run_stays_in_a_database_that_was_given(fresh_sqlite: str) -> None:
    done = demo("--url", fresh_sqlite, *SMALL)

    assert done.returncode == 0, done.stdout + done.stderr
    async with SessionStore(fresh_sqlite) as store:
        assert await store.list_sessions() == []


async def test_the_real_api_is_asked_with_the_users_key_and_address(fresh_sqlite: str) -> None:
    """What it seals stays sealed: the account is by the operations, and says so."""
    async with ResponsesEndpoint(compact_latency_s=1) as endpoint:
        done = await asyncio.to_thread(
            demo,
            *("--url", fresh_sqlite, "--api", "openai", *SMALL),
            OPENAI_API_KEY="sk-test",
            OPENAI_BASE_URL=endpoint.base_url,
            NO_PROXY="127.0.0.1",
        )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "sealed content not opened" in done.stdout
    assert {request.headers["authorization"] for request in endpoint.requests} == {"Bearer sk-test"}
    assert figures(done.stdout)["lost"] == ("kept", 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--api", "openai"), "OPENAI_API_KEY is not set"),
        (("--input", "no-such-file.jsonl"), "no-such-file.jsonl: cannot be read"),
        (("--url", "mysql://host/db"), "'mysql' is not served"),
        (("--url", "sqlite:///:memory:"), "cannot share a database in memory"),
        (("--naive", "--strict"), "give --naive or --strict"),
    ],
)
def test_what_cannot_be_run_is_one_line_and_status_2(arguments: tuple[str, ...], words: str) -> None:
    done = demo(*arguments, OPENAI_API_KEY="")

    assert done.returncode == 2
    assert done.stdout == ""
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_no_process_outlives_the_command(fresh_sqlite: str, number: int, status: int) -> None:
    """Whether it is interrupted, as by Ctrl-C in a terminal, or killed."""
    running = subprocess.Popen(
        [*COMMAND, "--url", fresh_sqlite, "--seconds", "600"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Started in the background of a script the tests ignore it, and so would the command.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert running.stdout is not None
    while not (line := running.stdout.readline()).endswith("clearing\n"):
        assert line
    children = children_of(running.pid)
    if number == signal.SIGINT:
        os.killpg(running.pid, number)
    else:
        running.send_signal(number)
    _, errors = running.communicate(timeout=TIMEOUT_S)
    wait_until(lambda: not any(is_alive(child) for child in children))

    assert len(children) >= 5
    assert running.returncode == status
    assert "Traceback" not in errors
    assert errors == ("" if number == signal.SIGKILL else "interrupted: nothing was judged\n")
