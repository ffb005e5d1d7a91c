"""The steps of a modelled history, made by a real driver."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from cas_session import driver as seam
from cas_session.driver import Driver, Landed, Load, Prefix, Write
from cas_session.errors import VersionNotRetainedError
from cas_session.snapshot import Version
from tests.conformance import writes
from tests.conformance.database import Database
from tests.model.manifest import Manifest, Plan
from tests.model.search import Node, Step

AGED, RETAIN = timedelta(days=40), timedelta(days=30)
FENCE = timedelta(days=36_500)  # however often a write was made to look older


class Replay:
    """One session of a driver that follows a modelled history.

    Attributes:
        versions: The versions that its writes returned, by number.
    """

    def __init__(self, driver: Driver, database: Database, session_id: str) -> None:
        self._driver = driver
        self._database = database
        self.session_id = session_id
        self.versions: list[Version] = [Version(0)]

    async def take(self, node: Node) -> None:
        """Take the node's step; a write must leave the model's manifest. A prune is prepared only."""
        assert node.step is not None
        match node.step:
            case Step(kind="remove erased"):
                await self._driver.remove_erased(self.session_id)
            case Step(kind="prune", version=version):
                await self.age(version)
            case step:
                landed = await writes.send(self._driver, self.write_of(step))
                self.landed(landed)
                assert counters(landed.manifest) == node.state.manifest, [
                    str(after.step) for after in node.path
                ]

    async def age(self, version: int) -> None:
        """Make the writes up to this version old enough for a prune by `RETAIN`."""
        await self._database.age_writes(self.session_id, AGED, through=version)

    def landed(self, landed: Landed) -> None:
        if landed.manifest.version == len(self.versions):
            self.versions.append(landed.manifest.version)

    def write_of(self, step: Step, **fields: Any) -> Write:
        """The step as a write. Replace and restore expect the version that is there."""
        s, now = self.session_id, self.versions[-1]
        match step.kind:
            case "append":
                return writes.append(s, *step.texts, **fields)
            case "pop":
                return writes.pop(s, **fields)
            case "clear":
                return writes.clear(s, **fields)
            case "delete":
                return writes.delete(s, **fields)
            case "replace":
                return writes.replace(s, *step.texts, expected=now, **fields)
            case "restore":
                return writes.restore(s, step.version, expected=now, **fields)
            case "compact":
                assert step.plan is not None
                # A prefix replace that may create the session has to say so.
                creates = None if now else 0
                prefix = self.prefix_of(step.plan)
                return writes.compact(s, prefix, *step.plan.texts, expected=creates, **fields)
        raise ValueError(step.kind)

    def prefix_of(self, plan: Plan) -> Prefix:
        return Prefix(
            through=plan.through,
            planned=self.versions[plan.source.version],
            epoch=plan.source.epoch,
            item_count=plan.item_count,
            byte_count=plan.byte_count,
        )

    async def check(self, node: Node) -> None:
        """What is there and every version of the past are as the lists have them."""
        loaded = await self._driver.load(Load(self.session_id))
        assert writes.texts_of(loaded) == list(node.lists.items)
        assert counters(loaded.manifest) == node.state.manifest
        assert loaded.manifest.version.nonce == self.versions[-1].nonce
        for version in range(1, node.lists.version + 1):
            await self.check_version(node, version)

    async def check_version(self, node: Node, version: int) -> None:
        lists = node.lists
        try:
            loaded = await self._driver.load_as_of(self.session_id, version)
        except VersionNotRetainedError as error:
            allowed = {"erased": lists.erased_before, "pruned": lists.pruned_before}
            if version >= allowed[error.reason]:
                raise
        else:
            assert not lists.is_erased(version)
            assert writes.texts_of(loaded) == list(lists.history[version])
            assert loaded.manifest.version.nonce == self.versions[version].nonce


def counters(manifest: seam.Manifest) -> Manifest:
    """A driver's manifest as the model writes it."""
    return Manifest(**{name: int(getattr(manifest, name)) for name in Manifest._fields})
