"""CompactionReport: what one compaction found, paid and decided."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from cas_session.snapshot import Version

Status = Literal[
    "applied",
    "rebased",
    "below_threshold",
    "nothing_to_compact",
    "open_call",
    "no_safe_cut",
    "cooldown",
    "withheld",
    "lease_held",
    "no_longer_needed",
    "empty_output",
    "not_smaller",
    "unsupported",
    "conflict",
    "failed",
    "cancelled",
    "disabled",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionReport:
    """The outcome of one compaction. Unless `landed`, the history is as it was.

    Attributes:
        session_id: The session.
        attempt_id: Names the attempt's row; None if no lease was taken, so that nothing was paid.
        status: What was decided.
        version_before: The version of the last plan; 0 if the session does not exist.
        version_after: The version that the replace made, else `version_before`.
        items_before, items_after: Items of the history of the plan, and after the replace.
        bytes_before, bytes_after: Their UTF-8 bytes.
        appended_during: Items that others appended between plan and replace; they are behind the output.
        mode: How the model got the history; None if it was not asked.
        model_calls: Calls made, paid or not.
        usage: Tokens of all calls together, as the provider counts them.
        duration_s: Seconds from start to end.
        blockers: Indexes of the items that are in the way of a cut.
        dead: Indexes of calls whose output will not come; they were kept verbatim.
        unknown: Types in the prefix that this release does not know.
        error: What went wrong, in words.
    """

    session_id: str
    status: Status
    attempt_id: str | None = None
    version_before: Version = Version(0)  # noqa: RUF009  # immutable
    version_after: Version = Version(0)  # noqa: RUF009  # immutable
    items_before: int = 0
    items_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    appended_during: int = 0
    mode: Literal["input", "previous_response_id"] | None = None
    model_calls: int = 0
    usage: dict[str, int] = field(default_factory=dict)
    duration_s: float = 0.0
    blockers: tuple[int, ...] = ()
    dead: tuple[int, ...] = ()
    unknown: tuple[str, ...] = ()
    error: str | None = None

    @property
    def landed(self) -> bool:
        """Whether the history was replaced."""
        return self.status in ("applied", "rebased")
