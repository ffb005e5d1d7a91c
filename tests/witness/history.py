"""What was seen of a database: every call of every process, and what was there in the end. Plain data.

An item is named by a token, its content, which nobody writes twice. An op_id holds the call that it belongs
to, so that a write is found in the op rows also when nobody heard of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from cas_session import Item

Verb = Literal[
    "append",
    "pop",
    "clear",
    "delete",
    "replace",
    "update",
    "restore",
    "compact",
    "read",
    "read as of",
    "prune",
]
Outcome = Literal[
    "landed", "nothing", "read", "conflict", "not retained", "did not land", "unknown", "raised"
]

PIN = "pin:"
Tokens = tuple[str, ...]


class Mark(NamedTuple):
    """A version: its number and its nonce; a bare number has none."""

    number: int
    nonce: str = ""

    def names(self, other: Mark) -> bool:
        """Whether a write that expects this lands on the other."""
        return self.number == other.number and self.nonce in ("", other.nonce)


@dataclass(frozen=True)
class Call:
    """A call of one process.

    Attributes:
        id: Begins every op_id that it makes.
        begin: Nanoseconds on the clock that all processes share.
        end: None if nobody heard of its end: its process was killed.
        items: What an append or replace brings, or what a read returned.
        limit: Of a read: the newest so many items.
        expected: The version that a conditional write names.
        target: The version that a restore or a read as of names.
        steps: What an update or a compaction was given and what it made of it, try by try.
        outcome: ``nothing``: there was nothing to write, the session is at `version`. ``raised``: an
            exception that the contract does not name.
        version: Of what landed or was read, or that a conflict names.
        planned: The version that a compaction was made from.
        epoch: Of what was read.
        item: What a pop returned.
        change: The kind of change that a conflict names.
        reason: Why a version is not retained.
        resent: Whether it was sent more than once.
        error: In words, for people.
    """

    id: str
    session: str
    verb: Verb
    begin: int
    end: int | None = None
    items: Tokens = ()
    limit: int | None = None
    expected: Mark | None = None
    target: int | None = None
    steps: tuple[tuple[Tokens, Tokens], ...] = ()
    outcome: Outcome = "unknown"
    version: Mark | None = None
    planned: Mark | None = None
    epoch: int | None = None
    item: str | None = None
    change: str | None = None
    reason: str | None = None
    resent: bool = False
    error: str | None = None

    @property
    def tokens(self) -> Tokens:
        """What it would bring into the session."""
        if self.verb in ("append", "replace"):
            return self.items
        return tuple(token for given, made in self.steps for token in made if token not in given)

    @property
    def is_write(self) -> bool:
        return self.verb not in ("read", "read as of", "prune")


@dataclass(frozen=True)
class Op:
    """An op row, as far as a checker needs it."""

    version: Mark
    op_id: str
    kind: str
    epoch: int
    item_count: int
    byte_count: int

    @property
    def call(self) -> str:
        """The call that wrote it."""
        return self.op_id.removeprefix("compact-").partition("/")[0]


@dataclass(frozen=True)
class Final:
    """A session when nobody writes any more.

    Attributes:
        version: The session row's.
        items: What a read returns.
        rows: Every item that is stored, after all that is hidden was pruned.
        ops: Every op row, oldest first.
    """

    session: str
    version: Mark
    epoch: int
    items: Tokens
    rows: Tokens
    ops: tuple[Op, ...]


@dataclass(frozen=True)
class History:
    """Everything that was seen."""

    calls: tuple[Call, ...]
    finals: tuple[Final, ...]

    def save(self, path: Path) -> None:
        """Write it down, one JSON object a line."""
        with path.open("w") as file:
            for call in self.calls:
                print(json.dumps({"Call": asdict(call)}), file=file)
            for final in self.finals:
                print(json.dumps({"Final": asdict(final)}), file=file)

    @classmethod
    def load(cls, path: Path) -> History:
        """Read what `save` wrote."""
        calls: list[Call] = []
        finals: list[Final] = []
        with path.open() as file:
            for line in file:
                ((name, entry),) = json.loads(line).items()
                if name == "Call":
                    calls.append(call_of(entry))
                else:
                    ops = tuple(Op(**{**op, "version": Mark(*op["version"])}) for op in entry["ops"])
                    finals.append(Final(**{**_frozen(entry), "version": Mark(*entry["version"]), "ops": ops}))
        return cls(tuple(calls), tuple(finals))


def call_of(entry: dict[str, Any]) -> Call:
    """A call from JSON."""
    marks = {name: Mark(*entry[name]) for name in ("expected", "version", "planned") if entry.get(name)}
    return Call(**{**_frozen(entry), **marks})


def recorded(log: Path) -> list[Call]:
    """The calls of one process from its log: a line where a call begins, others with what is known later.

    The last line of a killed process may be torn.
    """
    entries: dict[str, dict[str, Any]] = {}
    with log.open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n"):
                entry = json.loads(line)
                step = entry.pop("step", None)
                known = entries.setdefault(entry["id"], {"steps": []})
                known.update(entry)
                known["steps"] += [step] if step else []
    return [call_of(entry) for entry in entries.values()]


def item_of(token: str) -> Item:
    """The item that a token names."""
    return {"role": "assistant" if token.endswith("a") else "user", "content": token}


def tokens_of(items: Iterable[Any]) -> Tokens:
    """The tokens of items; an item that is not as it was written gives a token that nobody wrote."""
    return tuple(
        item["content"] if item == item_of(str(item.get("content"))) else json.dumps(item) for item in items
    )


def _frozen(value: Any) -> Any:
    """Lists of JSON as tuples, in an object as well."""
    if isinstance(value, dict):
        return {name: _frozen(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return tuple(_frozen(inner) for inner in value)
    return value
