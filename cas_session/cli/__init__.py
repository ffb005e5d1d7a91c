"""The cas-session command."""

from __future__ import annotations

import sys

from cas_session.errors import CasSessionError

EXTRAS = {"typer": "cli", "rich": "cli", "starlette": "demo", "uvicorn": "demo", "agents": "agents"}


def main() -> None:
    """Run the command; an error of the package is one line on stderr and exit status 2."""
    try:
        from cas_session.cli.app import app

        app()
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        _give_up(f"this needs {error.name}: pip install 'cas-session[{extra}]'")
    except CasSessionError as error:
        _give_up(str(error))


def _give_up(why: str) -> None:
    print(f"cas-session: {' '.join(why.split())}", file=sys.stderr)
    raise SystemExit(2)
