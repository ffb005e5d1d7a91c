"""What a session and a run of openai-agents know of each other. Duck-typed: agents is never imported.

The runner takes a token from its read of the history to each of its appends, unopened, and leaves the last
one on the run's context (``_session_compaction_generation``). Ours is a `Run`. So two runs that overlap on
one session object each know their own reads and writes, and no more.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from typing import Any, Final

from cas_session import events
from cas_session.compaction.chain import ChainState
from cas_session.compaction.replayed import count_replayed, outline
from cas_session.driver import Landed, Loaded
from cas_session.snapshot import Item

TESTED: Final = ((0, 24),)  # the minor releases of openai-agents that the tests ran with


@dataclass(slots=True)
class Run:
    """What one run read from a session object and wrote through it.

    Attributes:
        owner: Names the session object.
        state: What the run knows of the chain.
        outline: Type and names of each item that it read or wrote, without content.
        told: Whether the log has said that a filter withheld items.
    """

    owner: str
    state: ChainState = field(default_factory=lambda: ChainState(of_run=True))
    outline: list[Item] = field(default_factory=list)
    told: bool = False

    def read(self, loaded: Loaded, items: Sequence[Item], *, whole: bool) -> None:
        """The run read the session."""
        self.state.read(loaded, whole=whole)
        self.outline = [outline(item) for item in items]

    def wrote(self, landed: Landed, items: Sequence[Item] = ()) -> None:
        """A write of the run landed."""
        self.state.wrote(landed)
        self.outline.extend(outline(item) for item in items)


_recording: ContextVar[Run | None] = ContextVar("cas_session_recording", default=None)


@contextlib.contextmanager
def recording(run: Run) -> Iterator[None]:
    """While a run reads or writes: other sessions may wrap the object, so that the call comes back to it."""
    token = _recording.set(run)
    try:
        yield
    finally:
        _recording.reset(token)


def recorded(owner: str) -> Run | None:
    """The run whose read or write of this session object is under way."""
    run = _recording.get()
    return run if run is not None and run.owner == owner else None


def run_of(token: object, owner: str) -> Run:
    """The run that a token stands for; one that knows nothing if it is not from this session object.

    A run that was begun in another process and resumed here has read nothing that we know of.
    """
    return token if isinstance(token, Run) and token.owner == owner else Run(owner)


def run_behind(wrapper: object, owner: str) -> Run | None:
    """The run of a context; None if no runner is there, or one that knows no tokens."""
    if not hasattr(wrapper, "_session_compaction_generation"):
        return None
    return run_of(wrapper._session_compaction_generation, owner)


def withheld_from(wrapper: object, run: Run | None) -> Callable[[int], bool]:
    """Says whether an input filter kept items of a history of so many from the model of a run.

    It is a count, not a comparison, of what the run did until now: its newest request and answer have fewer
    items than it read and appended, of which the runner itself leaves some out. If it is not known what the
    run read, they have fewer than the history. By hand, and where the runner does not tell, nothing counts
    as withheld.

    Args:
        wrapper: The run's context, as it asks for a compaction.
        run: What the run read and wrote; None if that is not known.
    """
    exchange = getattr(wrapper, "_session_compaction_model_exchange", None)
    automatic = getattr(wrapper, "_session_compaction_is_automatic", False)
    if not automatic or not isinstance(exchange, tuple) or not exchange:
        return lambda item_count: False
    seen = len(exchange[0])
    if run is not None and run.state.read_epoch is not None:
        withheld = seen < count_replayed(run.outline)
        return lambda item_count: withheld
    return lambda item_count: seen < item_count


def used_tokens(wrapper: Any) -> int | None:
    """The tokens of the run's newest request and its answer; None if the run does not say."""
    usage = getattr(wrapper, "usage", None)
    entries = getattr(usage, "request_usage_entries", None)
    total = getattr(entries[-1] if entries else usage, "total_tokens", None)
    return total if isinstance(total, int) and total > 0 else None


def add_usage(wrapper: Any, usage: Mapping[str, Any]) -> None:
    """Add the tokens of one model call to the usage of a run's context, if there is one."""
    total: Any = getattr(wrapper, "usage", None)
    add = getattr(total, "add", None)
    if not callable(add) or not usage:
        return
    counts = {name: usage.get(name) or 0 for name in ("input_tokens", "output_tokens", "total_tokens")}
    try:
        add(type(total)(requests=1, **counts, **_details(total, usage)))
    except Exception as error:  # noqa: BLE001  # another SDK's books must not cost an answer that is paid
        events.logger.warning("the usage of a compaction was not added to the run's: %s", error)


def tell_landed(wrapper: Any) -> None:
    """Tell a run that its compaction landed: resumed after a cancellation, it must not miss its old items."""
    if wrapper is not None:
        with contextlib.suppress(AttributeError):
            wrapper._session_compaction_completed = True


def check_sdk() -> None:
    """Warn once if an openai-agents is loaded whose private names nobody tested this release with."""
    if "agents" in sys.modules:
        _check_installed_sdk()


@cache
def _check_installed_sdk() -> None:
    try:
        version = metadata.version("openai-agents")
    except metadata.PackageNotFoundError:
        return
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) not in TESTED:
        tested = ", ".join(f"{major}.{minor}" for major, minor in TESTED)
        events.logger.warning(
            "openai-agents %s is outside the range that cas-session was tested with (%s): sessions work by "
            "the SDK's public protocol; what its private hooks add may be missing",
            version,
            tested,
        )


def _details(total: Any, usage: Mapping[str, Any]) -> dict[str, Any]:
    """Cached, written and reasoning tokens in the classes of the run's own usage."""
    details = {}
    for name in ("input_tokens_details", "output_tokens_details"):
        own: Any = getattr(total, name, None)
        given = usage.get(name)
        if isinstance(given, Mapping) and hasattr(own, "model_dump"):
            none = {key: 0 for key, count in own.model_dump().items() if isinstance(count, int)}
            counted = {key: count for key, count in given.items() if isinstance(count, int)}
            details[name] = type(own)(**none | counted)
    return details
