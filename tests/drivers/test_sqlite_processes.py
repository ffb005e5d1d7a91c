"""Several processes on one SQLite file: killed in the middle of a write, or writing all at once."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest

from tests.conformance.writes import append, load, send, texts
from tests.drivers.sqlite_file import check_gapless, connected, on_writer, opened

pytestmark = pytest.mark.slow

S = "conversation-1"
WRITER = """
import asyncio, json, os, sys
from cas_session.errors import StorageUnavailableError
from tests.conformance.writes import append, resent, send
from tests.drivers.sqlite_file import opened

async def main(path, session_id, clients, count):
    async with opened(path) as driver:
        print(json.dumps("ready"), flush=True)
        await asyncio.to_thread(sys.stdin.readline)

        async def client(name):
            for turn in range(count):
                block = [f"{os.getpid()}.{name}.{turn}.{at}" for at in range(3)]
                write = append(session_id, *block)
                while True:
                    try:
                        landed = await send(driver, write)
                        break
                    except StorageUnavailableError:
                        write = resent(write, fenced=False)
                print(json.dumps([int(landed.manifest.version), block]), flush=True)

        await asyncio.gather(*(client(name) for name in range(clients)))

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
"""

Acknowledged = dict[int, list[str]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chat.db"


async def started(path: Path, *, clients: int, count: int) -> Process:
    """A process that is ready to write, and waits to be told."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, str(path), S, str(clients), str(count), stdin=PIPE, stdout=PIPE
    )
    assert process.stdout is not None
    assert json.loads(await process.stdout.readline()) == "ready"
    return process


def tell(process: Process) -> None:
    assert process.stdin is not None
    process.stdin.write(b"go\n")


async def acknowledged(process: Process, count: int | None = None) -> Acknowledged:
    """What the process says that it wrote: so many writes, or all until it ends."""
    assert process.stdout is not None
    seen: Acknowledged = {}
    while count is None or len(seen) < count:
        line = await process.stdout.readline()
        if not line.endswith(b"\n"):
            break
        version, block = json.loads(line)
        seen[version] = block
    return seen


def check_blocks(stored: list[str], blocks: Acknowledged) -> None:
    """Each acknowledged block is there once, in one piece, in the order of the versions."""
    at = [stored.index(blocks[version][0]) for version in sorted(blocks)]
    assert at == sorted(at)
    for start, version in zip(at, sorted(blocks), strict=True):
        assert stored[start : start + 3] == blocks[version]


@pytest.mark.parametrize("clients", [1, 16])
async def test_what_a_killed_process_had_acknowledged_is_there_and_nothing_is_there_in_halves(
    path: Path, clients: int
) -> None:
    seen: Acknowledged = {}
    for round_ in range(1, 4):
        process = await started(path, clients=clients, count=100_000)
        tell(process)
        seen |= await acknowledged(process, 40 * round_)
        process.kill()
        seen |= await acknowledged(process)
        await process.wait()

    async with opened(path) as driver:
        stored = await texts(driver, S)
        manifest = (await load(driver, S)).manifest
        landed = await send(driver, append(S, "after"))

        check_blocks(stored, seen)
        assert len(stored) == len(set(stored)) == 3 * manifest.version == manifest.item_count
        assert len(seen) <= manifest.version
        assert landed.manifest.version == manifest.version + 1
        await check_gapless(driver, S, landed.manifest.version)
        assert await on_writer(driver, "PRAGMA integrity_check") == ("ok",)


@pytest.mark.parametrize(("processes", "clients"), [(4, 1), (3, 8)])
async def test_processes_that_append_to_one_session_share_its_versions(
    path: Path, processes: int, clients: int
) -> None:
    count = 40
    writers = await asyncio.gather(*(started(path, clients=clients, count=count) for _ in range(processes)))
    for writer in writers:
        tell(writer)
    seen = await asyncio.gather(*(acknowledged(writer) for writer in writers))
    codes = [await writer.wait() for writer in writers]
    total = processes * clients * count

    async with opened(path) as driver:
        everyone = {version: block for one in seen for version, block in one.items()}
        assert codes == [0] * processes
        assert sorted(version for one in seen for version in one) == list(range(1, total + 1))
        assert await texts(driver, S) == [text for version in sorted(everyone) for text in everyone[version]]
        await check_gapless(driver, S, total)


async def test_a_process_killed_while_it_waits_for_its_turn_holds_up_nobody(path: Path) -> None:
    async with opened(path) as driver:
        process = await started(path, clients=1, count=1)
        with connected(path) as raw:
            raw.execute("BEGIN IMMEDIATE")
            tell(process)
            process.kill()
            await process.wait()
            raw.execute("COMMIT")

        await send(driver, append(S, "a"))
        assert (await texts(driver, S))[-1] == "a"


async def test_a_file_that_is_read_while_others_write_is_never_torn(path: Path) -> None:
    """Every snapshot holds whole blocks, and as many items as its manifest says."""
    process = await started(path, clients=2, count=200)
    tell(process)
    async with opened(path) as driver:
        seen = asyncio.create_task(acknowledged(process))
        snapshots = 0
        while not seen.done():
            loaded = await load(driver, S)
            snapshots += 1

            assert len(loaded.rows) == loaded.manifest.item_count == 3 * loaded.manifest.version
        await process.wait()

    assert snapshots > 1
    assert len(await seen) == 400
