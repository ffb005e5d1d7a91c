"""Appends that leave together: all land or none, each with a version, an op row and a block of its own."""

from __future__ import annotations

import pytest

from cas_session.driver import Chain, Driver, GroupRefusedError
from tests.conformance.writes import (
    append,
    delete,
    everything,
    load,
    operations,
    resent,
    send,
    texts,
    texts_of,
)


async def test_the_members_of_a_group_land_in_order_as_contiguous_blocks(driver: Driver, s: str) -> None:
    await send(driver, append(s, "before"))

    landed = await driver.append([append(s, "a1", "a2"), append(s, "b1"), append(s, "c1", "c2", "c3")])

    assert await texts(driver, s) == ["before", "a1", "a2", "b1", "c1", "c2", "c3"]
    assert [int(member.manifest.version) for member in landed] == [2, 3, 4]


async def test_each_member_of_a_group_is_told_its_own_manifest(driver: Driver, s: str) -> None:
    group = [append(s, "a1", "ä2"), append(s, "b1"), append(s, "c1")]

    landed = await driver.append(group)

    assert [member.manifest.next_seq for member in landed] == [3, 4, 5]
    assert [member.manifest.item_count for member in landed] == [2, 3, 4]
    assert [member.manifest.byte_count for member in landed] == [5, 7, 9]
    assert [member.manifest.version.nonce for member in landed] == [member.nonce for member in group]
    assert {member.manifest.epoch for member in landed} == {0}
    assert (await load(driver, s)).manifest == landed[-1].manifest
    assert (await load(driver, s)).manifest.version.nonce == group[-1].nonce


async def test_each_member_of_a_group_has_an_op_row(driver: Driver, s: str) -> None:
    group = [append(s, name, worker=f"worker-{name}") for name in "abc"]

    landed = await driver.append(group)
    rows = list(reversed(await operations(driver, s)))

    assert [row.op_id for row in rows] == [member.op_id for member in group]
    assert [row.digest for row in rows] == [member.digest for member in group]
    assert [row.worker for row in rows] == ["worker-a", "worker-b", "worker-c"]
    assert [row.manifest for row in rows] == [member.manifest for member in landed]
    assert [row.manifest.version.nonce for row in rows] == [member.nonce for member in group]


async def test_each_version_of_a_group_can_be_read(driver: Driver, s: str) -> None:
    await driver.append([append(s, "a"), append(s, "b"), append(s, "c")])

    assert [texts_of(await driver.load_as_of(s, version)) for version in (1, 2, 3)] == [
        ["a"],
        ["a", "b"],
        ["a", "b", "c"],
    ]


async def test_a_group_creates_the_session_with_the_owner_of_its_first_member(driver: Driver, s: str) -> None:
    await driver.append(
        [append(s, "a", owner="ann", metadata='{"k":1}'), append(s, "b", owner="bob", metadata='{"k":2}')]
    )
    row = (await load(driver, s)).row

    assert row is not None
    assert (row.owner, row.metadata) == ("ann", '{"k":1}')


async def test_a_group_revives_a_tombstone_with_the_owner_of_its_first_member(driver: Driver, s: str) -> None:
    await send(driver, append(s, "old", owner="eve", metadata='{"k":0}'))
    await send(driver, delete(s))
    await driver.append([append(s, "a", owner="ann"), append(s, "b", owner="bob", metadata='{"k":2}')])
    row = (await load(driver, s)).row

    assert row is not None
    assert (row.deleted_at, row.owner, row.metadata) == (None, "ann", None)
    assert await texts(driver, s) == ["a", "b"]


async def test_a_group_keeps_the_chain(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a"))
    chain = Chain(response_id="resp_1", stored=True, epoch=0, seq=1)
    await driver.record_chain(s, chain)

    landed = await driver.append([append(s, "b"), append(s, "c")])

    assert [member.chain for member in landed] == [chain, chain]


async def test_each_member_of_a_group_sent_again_finds_its_own_result(driver: Driver, s: str) -> None:
    group = [append(s, "a"), append(s, "b"), append(s, "c")]
    landed = await driver.append(group)

    again = [await send(driver, resent(member)) for member in group]

    assert [member.manifest for member in again] == [member.manifest for member in landed]
    assert await texts(driver, s) == ["a", "b", "c"]


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_a_group_with_a_member_that_had_landed_is_refused_whole(
    driver: Driver, s: str, place: int
) -> None:
    group = [append(s, "a"), append(s, "b"), append(s, "c")]
    await send(driver, group[place])
    before = await everything(driver, s)

    with pytest.raises(GroupRefusedError):
        await driver.append(group)

    assert await everything(driver, s) == before


async def test_a_group_with_one_op_id_twice_is_refused_whole(driver: Driver, s: str) -> None:
    with pytest.raises(GroupRefusedError):
        await driver.append([append(s, "a", op_id="same"), append(s, "b", op_id="same")])

    assert (await load(driver, s)).row is None
    assert await operations(driver, s) == []


async def test_after_a_refused_group_its_members_land_alone(driver: Driver, s: str) -> None:
    group = [append(s, "a"), append(s, "b"), append(s, "c")]
    await send(driver, group[1])
    with pytest.raises(GroupRefusedError):
        await driver.append(group)

    for member in group:
        await send(driver, member)

    assert await texts(driver, s) == ["b", "a", "c"]
    assert [int(row.manifest.version) for row in await operations(driver, s)] == [3, 2, 1]


async def test_a_large_group_lands_in_order(driver: Driver, s: str) -> None:
    await driver.append([append(s, *(f"{member}.{at}" for at in range(3))) for member in range(64)])

    assert await texts(driver, s) == [f"{member}.{at}" for member in range(64) for at in range(3)]
    assert (await load(driver, s)).manifest.version == 64
