"""The database that a command works on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

UrlArgument = Annotated[
    str,
    typer.Argument(
        envvar="CAS_SESSION_URL",
        show_envvar=True,
        help="sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE.",
    ),
]


def is_missing_file(url: str) -> bool:
    """Whether opening the URL would make a SQLite file."""
    scheme, _, file = url.partition(":///")
    return scheme.startswith("sqlite") and bool(file) and not Path(file.partition("?")[0]).exists()
