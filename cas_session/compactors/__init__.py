"""The parts that make a history shorter, and the protocol that they follow."""

from cas_session.compactors.base import Compacted, CompactionRequest, Compactor, Mode
from cas_session.compactors.responses import ResponsesCompactor
from cas_session.errors import CompactorError

__all__ = ["Compacted", "CompactionRequest", "Compactor", "CompactorError", "Mode", "ResponsesCompactor"]
