"""The parts that make a history shorter, and the protocol that they follow."""

from cas_session.compactors.base import (
    Compacted,
    CompactFunction,
    CompactionRequest,
    Compactor,
    Mode,
    as_compactor,
)
from cas_session.compactors.fallback import FallbackCompactor
from cas_session.compactors.prune import PruneCompactor
from cas_session.compactors.responses import ResponsesCompactor
from cas_session.compactors.summary import SummaryCompactor
from cas_session.errors import CompactorError

__all__ = [
    "CompactFunction",
    "Compacted",
    "CompactionRequest",
    "Compactor",
    "CompactorError",
    "FallbackCompactor",
    "Mode",
    "PruneCompactor",
    "ResponsesCompactor",
    "SummaryCompactor",
    "as_compactor",
]
