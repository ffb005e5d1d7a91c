"""What a session object, or one run through it, knows of the provider's stored responses, and when they may
stand for the items.

The chain itself lives in the session row. This is the part that only they can know: what they read, and
whether anybody else wrote since.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cas_session.driver import NO_CHAIN, Chain, Landed, Loaded


@dataclass(slots=True)
class ChainState:
    """The view of an object, or of one run.

    Attributes:
        chain: As the row had it at the last read or write.
        read_epoch: The epoch of the last read; for an object also of the first write before any; None if
            there was neither. A later write never renews it: else a clear between a run's read and its end
            would be undone.
        version: The version up to which this object knows every write; None if it knows none.
        seq: The last seq up to which it knows every item.
        whole: Whether it saw the history from its first item.
        alone: Whether nobody else wrote since it read.
        void_id: A response id that a rewrite made void.
        of_run: Whether this is one run's view. What a run's model was given comes from its read alone, so
            that nothing later makes its responses valid again.
    """

    chain: Chain = NO_CHAIN
    read_epoch: int | None = None
    version: int | None = None
    seq: int = 0
    whole: bool = False
    alone: bool = False
    void_id: str | None = None
    of_run: bool = False

    def read(self, loaded: Loaded, *, whole: bool) -> None:
        """The object read the session."""
        manifest = loaded.manifest
        self.chain = loaded.chain
        self.read_epoch = manifest.epoch
        self.version = manifest.version
        self.seq = manifest.next_seq - 1
        self.whole = whole
        self.alone = True

    def wrote(self, landed: Landed) -> None:
        """A write of the object landed."""
        if landed.chain is not None:
            self.chain = landed.chain
        manifest = landed.manifest
        if self.read_epoch is None:
            if self.of_run:  # begun elsewhere: what its model was given is not known here
                return
            self.read_epoch = manifest.epoch
        first = self.version is None and manifest.version == 1
        if first or (self.alone and manifest.version == (self.version or 0) + 1):
            self.version = manifest.version
            self.seq = manifest.next_seq - 1
            self.whole = self.whole or first
            self.alone = True
        else:
            self.alone = False

    def acknowledge(self, loaded: Loaded) -> None:
        """The caller was told that its response is void: what it names next is newer than this state.

        A run knows nothing from then on: it goes on with what it read before the rewrite.
        """
        self.read_epoch = None
        self.version = None
        self.whole = False
        self.alone = False
        self.chain = loaded.chain

    def to_record(self, response_id: str, stored: bool | None, loaded: Loaded) -> Chain | None:
        """The chain that a response of this object makes; ``loaded`` is the session as it stands now.

        It covers what the object knows; an object that knows nothing names what is there. The response of a
        run makes none if it may hold what was erased, or does not hold all: it read nothing here, or a part.
        """
        manifest = loaded.manifest
        if self.of_run and (self.read_epoch is None or not self.whole):
            return None
        if stored is None and response_id == loaded.chain.response_id:
            stored = loaded.chain.stored  # said once
        return Chain(
            response_id=response_id,
            stored=stored,
            deferred_id=loaded.chain.deferred_id,
            epoch=self.read_epoch if self.read_epoch is not None else manifest.epoch,
            seq=self.seq if self.version is not None else manifest.next_seq - 1,
        )

    def marked(self, response_id: str, loaded: Loaded) -> Chain:
        """The row's chain with the mark that the compaction of this response was put off."""
        epoch = self.read_epoch if self.read_epoch is not None else loaded.manifest.epoch
        return replace(current(loaded), deferred_id=response_id, epoch=epoch)

    def covers_all(self, loaded: Loaded) -> bool:
        """Whether this object read the whole history and only it wrote since."""
        return self.whole and self.alone and self.version == loaded.manifest.version


def current(loaded: Loaded) -> Chain:
    """The row's chain if no rewrite came since it was recorded, else none."""
    return loaded.chain if loaded.chain.epoch == loaded.manifest.epoch else NO_CHAIN
