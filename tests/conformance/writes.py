"""Writes as the store makes them: a fresh op_id and nonce each, and a digest of what is in it."""

from __future__ import annotations

import dataclasses
import uuid
from datetime import timedelta
from typing import Any, TypeVar

from cas_session.codec import digest
from cas_session.driver import (
    Append,
    BeginCompaction,
    Clear,
    Driver,
    Kind,
    Landed,
    Load,
    Loaded,
    Manifest,
    OpRow,
    Pop,
    Prefix,
    Replace,
    Restore,
    Write,
)
from cas_session.errors import StorageUnavailableError

KINDS: tuple[Kind, ...] = ("append", "pop", "clear", "replace", "compact", "restore", "delete")
REWRITES: tuple[Kind, ...] = KINDS[1:]
UNCONDITIONAL: tuple[Kind, ...] = ("append", "pop", "clear", "delete")
"""Kinds that need no expected version. Replace and restore need one, a compaction needs its plan."""

TRIES = 500

W = TypeVar("W", bound=Write)


def new_id() -> str:
    return uuid.uuid4().hex


def append(session_id: str, *texts: str, **fields: Any) -> Append:
    return Append(**_head("append", session_id, texts, fields), texts=texts, sizes=_sizes(texts), **fields)


def pop(session_id: str, **fields: Any) -> Pop:
    return Pop(**_head("pop", session_id, (), fields), **fields)


def clear(session_id: str, **fields: Any) -> Clear:
    return Clear(**_head("clear", session_id, (), fields), **fields)


def delete(session_id: str, **fields: Any) -> Clear:
    return Clear(**_head("delete", session_id, (), fields), delete=True, **fields)


def replace(session_id: str, *texts: str, **fields: Any) -> Replace:
    return Replace(**_head("replace", session_id, texts, fields), texts=texts, sizes=_sizes(texts), **fields)


def restore(session_id: str, version: int, **fields: Any) -> Restore:
    return Restore(**_head("restore", session_id, (str(int(version)),), fields), version=version, **fields)


def compact(session_id: str, prefix: Prefix, *texts: str, **fields: Any) -> Replace:
    head = _head("compact", session_id, (str(prefix.through), *texts), fields)
    return Replace(**head, texts=texts, sizes=_sizes(texts), prefix=prefix, **fields)


def prefix_of(loaded: Loaded, cut: int) -> Prefix:
    """The prefix ``loaded.rows[:cut]``; a cut above base_seq, or of everything."""
    manifest, rows = loaded.manifest, loaded.rows[:cut]
    if not loaded.rows:
        through = manifest.next_seq - 1
    else:
        through = max(manifest.base_seq, rows[-1][0] if rows else manifest.base_seq)
    return Prefix(
        through=through,
        planned=manifest.version,
        epoch=manifest.epoch,
        item_count=len(rows),
        byte_count=sum(_sizes(tuple(text for _, text in rows))),
    )


def write(kind: Kind, loaded: Loaded, *texts: str, **fields: Any) -> Write:
    """A write of this kind, as somebody makes it who has just read the session."""
    assert loaded.row is not None
    session_id, version = loaded.row.session_id, loaded.manifest.version
    match kind:
        case "append":
            return append(session_id, *(texts or ("new",)), **fields)
        case "pop":
            return pop(session_id, **fields)
        case "clear":
            return clear(session_id, **fields)
        case "delete":
            return delete(session_id, **fields)
        case "replace":
            return replace(session_id, *(texts or ("new",)), **{"expected": version, **fields})
        case "restore":
            return restore(session_id, version, **{"expected": version, **fields})
        case "compact":
            return compact(session_id, prefix_of(loaded, len(loaded.rows)), *(texts or ("new",)), **fields)


def resent(write: W, *, fenced: bool = True, **changes: Any) -> W:
    """The same write, sent again."""
    return dataclasses.replace(write, nonce=new_id(), fenced=fenced, **changes)


async def send(driver: Driver, write: Write) -> Landed:
    match write:
        case Append():
            (landed,) = await driver.append([write])
            return landed
        case Pop():
            return await driver.pop(write)
        case Clear():
            return await driver.clear(write)
        case Replace():
            return await driver.replace(write)
        case Restore():
            return await driver.restore(write)
    raise TypeError(write)


async def until_landed(driver: Driver, write: Write) -> Landed:
    """Send it, and again for as long as it surely did not land and the driver says that it may."""
    for _ in range(TRIES):
        try:
            return await send(driver, write)
        except StorageUnavailableError as error:
            if not error.transient:
                raise
            write = resent(write, fenced=write.fenced)
    raise AssertionError(f"not landed in {TRIES} tries: {write}")


async def load(driver: Driver, session_id: str, **fields: Any) -> Loaded:
    return await driver.load(Load(session_id, **fields))


async def texts(driver: Driver, session_id: str) -> list[str]:
    """The visible items, oldest first."""
    return texts_of(await load(driver, session_id))


def texts_of(loaded: Loaded) -> list[str]:
    return [text for _, text in loaded.rows]


async def operations(driver: Driver, session_id: str) -> list[OpRow]:
    """All op rows, newest first."""
    return await driver.operations(session_id, limit=1000, before=None)


async def everything(driver: Driver, session_id: str) -> object:
    """All that a write could have changed, to be compared before and after."""
    loaded = await load(driver, session_id)
    nonce = loaded.manifest.version.nonce
    return loaded.row, nonce, list(loaded.rows), await operations(driver, session_id)


def begin(session_id: str, source: Manifest, **fields: Any) -> BeginCompaction:
    return BeginCompaction(
        **{
            "attempt_id": new_id(),
            "session_id": session_id,
            "owner": "worker-1",
            "lease": timedelta(minutes=5),
            "trigger": "by hand",
            "source": source,
            "last_seq": source.next_seq - 1,
            "item_count": source.item_count,
            "digest": b"source digest",
            **fields,
        }
    )


def _head(kind: str, session_id: str, texts: tuple[str, ...], fields: dict[str, Any]) -> dict[str, Any]:
    """The common fields; op_id may be given among ``fields``."""
    op_id = fields.pop("op_id", None) or new_id()
    return {
        "session_id": session_id,
        "op_id": op_id,
        "nonce": new_id(),
        "digest": digest((kind, *texts), key=op_id),
    }


def _sizes(texts: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(len(text.encode()) for text in texts)
