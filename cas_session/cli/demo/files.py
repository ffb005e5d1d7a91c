"""Conversations in JSON Lines files: one item of the Responses API a line, oldest first."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

from cas_session.errors import CasSessionError
from cas_session.snapshot import Item
from cas_session.testing.strict import InvalidRequestError, check_items, check_links, item_type


class InputFileError(CasSessionError):
    """A conversation file that cannot be used; the text begins with file and line. Nothing was run."""


def shipped() -> Path:
    """The conversation that comes with the package."""
    return Path(str(files("cas_session.cli.demo") / "conversation.jsonl"))


def read_file(path: Path) -> list[Item]:
    """Read a conversation.

    Raises:
        InputFileError: The file, the line and what is wrong with it.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputFileError(f"{path}: cannot be read: {error}") from error
    items = [_item(path, number, line) for number, line in _lines(text)]
    if not items:
        raise InputFileError(f"{path}: holds no items; give one JSON object a line")
    try:
        check_links(items, {})
    except InvalidRequestError as error:
        raise InputFileError(f"{path}: the API would refuse this conversation: {error}") from error
    return items


def resealed(items: Sequence[Item], seal: Callable[[Sequence[Item]], str]) -> tuple[list[Item], int]:
    """The items with opaque content that this server can read, and how many had content of another one.

    What another server sealed cannot be opened here: a compaction item stands for nothing then.
    """
    renewed = [
        item
        if item.get("encrypted_content") is None
        else {**item, "encrypted_content": seal([] if item_type(item) == "compaction" else [item])}
        for item in items
    ]
    return renewed, sum(new is not old for new, old in zip(renewed, items, strict=True))


def _lines(text: str) -> list[tuple[int, str]]:
    # Not splitlines: JSON may hold U+2028 and the like as they are.
    return [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def _item(path: Path, number: int, line: str) -> Item:
    try:
        item = json.loads(line)
    except ValueError as error:
        raise InputFileError(f"{path}:{number}: no JSON: {error}") from error
    if not isinstance(item, dict):
        raise InputFileError(f"{path}:{number}: a JSON {type(item).__name__}; an item is a JSON object")
    try:
        check_items([item])
    except InvalidRequestError as error:
        why = str(error).replace("'input[0].", "'").replace("'input[0]'", "the item")
        raise InputFileError(f"{path}:{number}: {why}") from error
    if item_type(item) == "compaction_trigger":
        raise InputFileError(f"{path}:{number}: a compaction_trigger belongs to a request, not to a history")
    return item
