"""Compaction attempts: the running one is the lease, and the row says what was read, paid and decided."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from cas_session.driver import NO_SESSION, Driver, FinishCompaction, Kind, Manifest
from tests.conformance.writes import (
    REWRITES,
    append,
    begin,
    clear,
    delete,
    load,
    new_id,
    operations,
    send,
    write,
)

EXPIRED = timedelta(seconds=-1)
LEASE = timedelta(minutes=5)


async def _session(driver: Driver, s: str) -> Manifest:
    return (await send(driver, append(s, "a", "b"))).manifest


async def test_a_begun_attempt_is_recorded_as_running(driver: Driver, s: str) -> None:
    source = await _session(driver, s)
    attempt = begin(s, source, last_seq=2, model="gpt-5.1", host="api.example.com")

    assert await driver.begin_compaction(attempt) == "started"
    (row,) = await driver.compactions(s, limit=10)

    assert (row.attempt_id, row.session_id, row.status) == (attempt.attempt_id, s, "running")
    assert (row.owner, row.trigger, row.model, row.host) == (
        "worker-1",
        "by hand",
        "gpt-5.1",
        "api.example.com",
    )
    assert (row.source_version, row.source_nonce) == (1, source.version.nonce)
    assert (row.source_epoch, row.source_last_seq, row.source_items) == (0, 2, 2)
    assert row.source_digest == b"source digest"
    assert abs(row.expires_at - row.started_at - LEASE) < timedelta(seconds=1)
    assert row.started_at.tzinfo is not None
    assert (row.finished_at, row.decision, row.output_items, row.target_version) == (None, None, None, None)


async def test_a_second_worker_is_held_while_the_lease_is_live(driver: Driver, other: Driver, s: str) -> None:
    source = await _session(driver, s)
    await driver.begin_compaction(begin(s, source))

    assert await other.begin_compaction(begin(s, source, owner="worker-2")) == "held"
    assert len(await driver.compactions(s, limit=10)) == 1


async def test_an_attempt_that_is_begun_again_is_still_started(driver: Driver, s: str) -> None:
    """Its answer may have been lost."""
    attempt = begin(s, await _session(driver, s))
    await driver.begin_compaction(attempt)

    assert await driver.begin_compaction(attempt) == "started"
    assert len(await driver.compactions(s, limit=10)) == 1


async def test_a_lease_is_held_for_one_session_only(driver: Driver, s: str) -> None:
    await driver.begin_compaction(begin(s, await _session(driver, s)))
    theirs = await _session(driver, "conversation-2")

    assert await driver.begin_compaction(begin("conversation-2", theirs)) == "started"


async def test_an_attempt_still_starts_after_appends(driver: Driver, s: str) -> None:
    source = await _session(driver, s)
    await send(driver, append(s, "c"))

    assert await driver.begin_compaction(begin(s, source)) == "started"


@pytest.mark.parametrize("kind", REWRITES)
async def test_an_attempt_whose_source_was_rewritten_has_moved_and_is_not_recorded(
    driver: Driver, s: str, kind: Kind
) -> None:
    source = await _session(driver, s)
    await send(driver, write(kind, await load(driver, s)))

    assert await driver.begin_compaction(begin(s, source)) == "moved"
    assert await driver.compactions(s, limit=10) == []


async def test_an_attempt_on_a_session_that_is_gone_has_moved(driver: Driver, s: str) -> None:
    source = await _session(driver, s)
    await send(driver, clear(s))
    source = (await load(driver, s)).manifest
    await send(driver, delete(s))
    await driver.forget(s)

    assert await driver.begin_compaction(begin(s, source)) == "moved"


async def test_an_attempt_on_a_session_that_does_not_exist_starts(driver: Driver, s: str) -> None:
    """A response chain can be compacted over empty storage."""
    assert await driver.begin_compaction(begin(s, NO_SESSION)) == "started"


async def test_an_expired_attempt_is_taken_over_and_marked_expired(
    driver: Driver, other: Driver, s: str
) -> None:
    source = await _session(driver, s)
    first = begin(s, source, lease=EXPIRED)
    second = begin(s, source, owner="worker-2")
    await driver.begin_compaction(first)

    assert await other.begin_compaction(second) == "started"
    rows = {row.attempt_id: row for row in await driver.compactions(s, limit=10)}

    assert rows[first.attempt_id].status == "expired"
    assert (rows[second.attempt_id].status, rows[second.attempt_id].owner) == ("running", "worker-2")


async def test_a_moved_epoch_takes_nothing_over(driver: Driver, s: str) -> None:
    source = await _session(driver, s)
    await driver.begin_compaction(begin(s, source, lease=EXPIRED))
    await send(driver, clear(s))

    assert await driver.begin_compaction(begin(s, source, owner="worker-2")) == "moved"


async def test_a_finished_attempt_gives_the_lease_back(driver: Driver, s: str) -> None:
    source = await _session(driver, s)
    attempt = begin(s, source)
    await driver.begin_compaction(attempt)
    await driver.finish_compaction(
        FinishCompaction(attempt_id=attempt.attempt_id, decision="below_threshold")
    )

    assert await driver.begin_compaction(begin(s, source)) == "started"


async def test_a_finished_attempt_says_what_was_read_paid_and_decided(driver: Driver, s: str) -> None:
    attempt = begin(s, await _session(driver, s), model="planned-model")
    await driver.begin_compaction(attempt)
    finish = FinishCompaction(
        attempt_id=attempt.attempt_id,
        decision="rebased",
        output_items=1,
        output_digest=b"output digest",
        found_version=3,
        target_version=4,
        appended_during=2,
        model="gpt-5.1",
        host="api.example.com",
        response_id="resp_1",
        usage='{"total_tokens":7}',
        error="first call: 429",
    )

    await driver.finish_compaction(finish)
    (row,) = await driver.compactions(s, limit=10)

    assert (row.status, row.decision) == ("done", "rebased")
    assert (row.output_items, row.output_digest) == (1, b"output digest")
    assert (row.found_version, row.target_version, row.appended_during) == (3, 4, 2)
    assert (row.model, row.host, row.response_id) == ("gpt-5.1", "api.example.com", "resp_1")
    assert (row.usage, row.error) == ('{"total_tokens":7}', "first call: 429")
    assert row.finished_at is not None
    assert row.finished_at >= row.started_at
    assert row.source_digest == b"source digest"


async def test_an_attempt_that_was_taken_over_keeps_its_status_and_gets_the_rest(
    driver: Driver, s: str
) -> None:
    source = await _session(driver, s)
    late = begin(s, source, lease=EXPIRED)
    await driver.begin_compaction(late)
    running = begin(s, source)
    await driver.begin_compaction(running)

    await driver.finish_compaction(
        FinishCompaction(attempt_id=late.attempt_id, decision="conflict", usage="{}", output_items=1)
    )
    rows = {row.attempt_id: row for row in await driver.compactions(s, limit=10)}

    assert (rows[late.attempt_id].status, rows[late.attempt_id].decision) == ("expired", "conflict")
    assert (rows[late.attempt_id].usage, rows[late.attempt_id].output_items) == ("{}", 1)
    assert rows[running.attempt_id].status == "running"


@pytest.mark.parametrize("erase", [clear, delete])
async def test_an_attempt_from_before_an_erase_writes_no_digest_and_no_text(
    driver: Driver, s: str, erase: type
) -> None:
    attempt = begin(s, await _session(driver, s))
    await driver.begin_compaction(attempt)
    await send(driver, erase(s))
    await driver.remove_erased(s)

    await driver.finish_compaction(
        FinishCompaction(
            attempt_id=attempt.attempt_id,
            decision="conflict",
            output_items=1,
            output_digest=b"output digest",
            usage='{"total_tokens":7}',
            error="cannot read: a",
        )
    )
    (row,) = await driver.compactions(s, limit=10)

    assert (row.status, row.decision, row.output_items) == ("done", "conflict", 1)
    assert row.usage == '{"total_tokens":7}'
    assert (row.source_digest, row.output_digest, row.error) == (None, None, None)


async def test_a_rewrite_that_erases_nothing_withholds_nothing(driver: Driver, s: str) -> None:
    attempt = begin(s, await _session(driver, s))
    await driver.begin_compaction(attempt)
    await send(driver, write("replace", await load(driver, s)))

    await driver.finish_compaction(
        FinishCompaction(attempt_id=attempt.attempt_id, decision="conflict", error="why", output_digest=b"d")
    )
    (row,) = await driver.compactions(s, limit=10)

    assert (row.error, row.output_digest) == ("why", b"d")


async def test_a_running_attempt_is_renewed_from_now_on(driver: Driver, s: str) -> None:
    source = await _session(driver, s)
    attempt = begin(s, source, lease=EXPIRED)
    await driver.begin_compaction(attempt)

    assert await driver.renew_compaction(attempt.attempt_id, LEASE)
    assert await driver.begin_compaction(begin(s, source)) == "held"


async def test_a_renewed_lease_can_be_let_go(driver: Driver, s: str) -> None:
    source = await _session(driver, s)
    attempt = begin(s, source)
    await driver.begin_compaction(attempt)

    assert await driver.renew_compaction(attempt.attempt_id, EXPIRED)
    assert await driver.begin_compaction(begin(s, source)) == "started"


async def test_an_attempt_that_is_not_running_is_not_renewed(driver: Driver, s: str) -> None:
    source = await _session(driver, s)
    taken, finished = begin(s, source, lease=EXPIRED), begin(s, source)
    await driver.begin_compaction(taken)
    await driver.begin_compaction(finished)
    await driver.finish_compaction(FinishCompaction(attempt_id=finished.attempt_id, decision="applied"))

    assert not await driver.renew_compaction(taken.attempt_id, LEASE)
    assert not await driver.renew_compaction(finished.attempt_id, LEASE)
    assert not await driver.renew_compaction(new_id(), LEASE)


async def test_attempts_are_listed_newest_first(driver: Driver, s: str) -> None:
    source = await _session(driver, s)
    attempts = []
    for _ in range(4):
        attempt = begin(s, source)
        await driver.begin_compaction(attempt)
        await driver.finish_compaction(FinishCompaction(attempt_id=attempt.attempt_id, decision="applied"))
        attempts.append(attempt.attempt_id)
        await asyncio.sleep(0.002)  # moments are kept in milliseconds at least
    attempts.reverse()

    assert [row.attempt_id for row in await driver.compactions(s, limit=10)] == attempts
    assert [row.attempt_id for row in await driver.compactions(s, limit=2)] == attempts[:2]
    assert await driver.compactions("conversation-2", limit=10) == []


async def test_an_attempt_moves_no_version(driver: Driver, s: str) -> None:
    source = await _session(driver, s)
    attempt = begin(s, source)
    await driver.begin_compaction(attempt)
    await driver.renew_compaction(attempt.attempt_id, LEASE)
    await driver.finish_compaction(FinishCompaction(attempt_id=attempt.attempt_id, decision="applied"))

    assert (await load(driver, s)).manifest == source
    assert len(await operations(driver, s)) == 1


async def test_of_many_workers_one_gets_the_lease(driver: Driver, other: Driver, s: str) -> None:
    source = await _session(driver, s)

    answers = await asyncio.gather(
        *((driver, other)[n % 2].begin_compaction(begin(s, source, owner=f"worker-{n}")) for n in range(12))
    )

    assert sorted(answers) == ["held"] * 11 + ["started"]


async def test_of_many_workers_one_takes_an_expired_lease_over(driver: Driver, other: Driver, s: str) -> None:
    source = await _session(driver, s)
    await driver.begin_compaction(begin(s, source, lease=EXPIRED))

    answers = await asyncio.gather(
        *((driver, other)[n % 2].begin_compaction(begin(s, source, owner=f"worker-{n}")) for n in range(12))
    )

    assert sorted(answers) == ["held"] * 11 + ["started"]
