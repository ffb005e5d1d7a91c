"""The parts that make a history shorter, and the protocol that they follow."""

from cas_session.compactors.base import (
    Compacted,
    CompactFunction,
    CompactionRequest,
    Compactor,
    Mode,
    as_compactor,
)
from cas_session.compactors.responses import ResponsesCompactor
from cas_session.errors import CompactorError

__all__ = [
    "CompactFunction",
    "Compacted",
    "CompactionRequest",
    "Compactor",
    "CompactorError",
    "Mode",
    "ResponsesCompactor",
    "as_compactor",
]
