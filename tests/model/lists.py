"""What a user sees of a session, in the plainest words: a list of items, and a list for every version."""

from __future__ import annotations

from typing import NamedTuple


class Lists(NamedTuple):
    """A conversation and its past. It knows nothing of rows, seqs, gens and epochs of rows.

    Attributes:
        history: The items at each version; the last entry is what is there now.
        rewrites: How many rewrites there were up to each version.
        erased_before: Versions below were erased.
        pruned_before: Versions below may be refused, for prune was allowed to take what they need.
    """

    history: tuple[tuple[str, ...], ...] = ((),)
    rewrites: tuple[int, ...] = (0,)
    erased_before: int = 0
    pruned_before: int = 0

    @property
    def items(self) -> tuple[str, ...]:
        return self.history[-1]

    @property
    def version(self) -> int:
        return len(self.history) - 1

    def append(self, texts: tuple[str, ...]) -> Lists:
        return self._written(self.items + texts, rewritten=False)

    def pop(self) -> Lists:
        return self._written(self.items[:-1]) if self.items else self

    def clear(self) -> Lists:
        cleared = self._written(())
        return cleared._replace(erased_before=cleared.version)

    def replace(self, texts: tuple[str, ...]) -> Lists:
        return self._written(texts)

    def compact(self, cut: int, texts: tuple[str, ...]) -> Lists:
        return self._written(texts + self.items[cut:])

    def restore(self, version: int) -> Lists:
        return self._written(self.history[version])

    def prune(self, cutoff: int) -> Lists:
        return self._replace(pruned_before=max(self.pruned_before, cutoff))

    def only_appends_since(self, version: int) -> bool:
        return self.rewrites[version] == self.rewrites[-1]

    def is_erased(self, version: int) -> bool:
        return version < self.erased_before

    def _written(self, items: tuple[str, ...], *, rewritten: bool = True) -> Lists:
        return self._replace(
            history=(*self.history, items), rewrites=(*self.rewrites, self.rewrites[-1] + rewritten)
        )
