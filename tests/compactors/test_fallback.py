"""FallbackCompactor: when it asks whom, what it remembers and when it forgets."""

from __future__ import annotations

from typing import Any

import pytest
from openai import AsyncOpenAI

from cas_session import CompactionPolicy, CompactorError, RetryPolicy, SessionStore
from cas_session.compactors import (
    Compacted,
    CompactionRequest,
    FallbackCompactor,
    PruneCompactor,
    ResponsesCompactor,
    SummaryCompactor,
    summary,
)
from cas_session.testing.endpoint import Fault, Reply, ResponsesEndpoint
from tests.compactors.histories import CHAIN, paths, request, sealed, turn, user

MISSING = {
    "404": Fault.not_found(),
    "405": Fault.not_allowed(),
    "501": Fault.error(501),
    "502": Fault.error(502),
}


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def compactor(client: AsyncOpenAI, clock: Clock) -> FallbackCompactor:
    return FallbackCompactor(
        ResponsesCompactor(model="first", client=client),
        SummaryCompactor(model="second", client=client, api="chat"),
        missing_s=600,
        bad_gateway_s=60,
        clock=clock,
    )


@pytest.mark.parametrize("fault", MISSING.values(), ids=MISSING)
async def test_a_missing_endpoint_costs_one_request_and_the_summary_lands(
    endpoint: ResponsesEndpoint, compactor: FallbackCompactor, store: SessionStore, fault: Fault
) -> None:
    """The next session does not ask for it again."""
    endpoint.fail_next(fault, path="compact")
    endpoint.reply_with(Reply.text("one"), Reply.text("two"))

    for name in ("one", "two"):
        session = store.session(name, compactor=compactor)
        await session.append(turn(1))
        report = await session.compact(force=True)
        assert (report.status, report.model_calls) == ("applied", 1)
        assert [user(summary.HEADING + name)] == (await session.snapshot()).items

    assert paths(endpoint) == ["responses/compact", "chat/completions", "chat/completions"]
    assert (await session.compactions())[0].model == "second"


@pytest.mark.parametrize(("fault", "seconds"), [(MISSING["404"], 600), (MISSING["502"], 60)])
async def test_it_forgets_after_a_time(
    endpoint: ResponsesEndpoint, compactor: FallbackCompactor, clock: Clock, fault: Fault, seconds: float
) -> None:
    """A 502 may as well be an outage, so it is forgotten sooner."""
    endpoint.fail_next(fault, path="compact")
    await compactor.compact(request([user("hello")]))

    clock.now += seconds - 1
    assert (compactor.mode, compactor.model) == ("input", "second")
    await compactor.compact(request([user("hello")]))
    clock.now += 1
    assert (compactor.mode, compactor.model) == ("auto", "first")
    await compactor.compact(request([user("hello")]))

    assert paths(endpoint) == [
        "responses/compact",
        "chat/completions",
        "chat/completions",
        "responses/compact",
    ]


@pytest.mark.parametrize(
    "fault",
    [
        Fault.server_error(),
        Fault.error(503),
        Fault.rate_limited(),
        Fault.error(400),
        Fault.error(401),
        Fault.context_too_long(),
        Fault.error(404, code="model_not_found"),
        Fault.error(400, code="invalid_encrypted_content"),
        Fault.reset(),
        Fault.not_json(),
    ],
    ids=lambda fault: fault.body[:60].decode() or fault.cut,
)
async def test_other_failures_are_the_callers(
    endpoint: ResponsesEndpoint, compactor: FallbackCompactor, fault: Fault
) -> None:
    """The first one has the endpoint, so the second one is not its remedy."""
    endpoint.fail_next(fault, path="compact")

    with pytest.raises(CompactorError):
        await compactor.compact(request([user("hello")]))

    assert paths(endpoint) == ["responses/compact"]
    assert compactor.mode == "auto"


async def test_what_one_instance_learned_another_does_not_know(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI
) -> None:
    first, second = (
        FallbackCompactor(ResponsesCompactor(model="m", client=client), PruneCompactor()) for _ in range(2)
    )
    endpoint.fail_next(Fault.not_found(), path="compact")

    await first.compact(request([user("hello")]))

    assert (first.mode, second.mode) == ("input", "auto")


async def test_it_remembers_for_each_base_url(endpoint: ResponsesEndpoint, client: AsyncOpenAI) -> None:
    """A client that is pointed elsewhere is asked there."""
    compactor = FallbackCompactor(ResponsesCompactor(model="m", client=client), PruneCompactor())
    endpoint.fail_next(Fault.not_found(), path="compact")
    await compactor.compact(request([user("hello")]))

    async with ResponsesEndpoint() as other:
        client.base_url = other.base_url
        await compactor.compact(request([user("hello")]))
        client.base_url = endpoint.base_url
        await compactor.compact(request([user("hello")]))

        assert (len(endpoint.requests), len(other.requests)) == (1, 1)


async def test_a_chain_whose_endpoint_is_missing_goes_on_with_items(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI, store: SessionStore
) -> None:
    """The second call of the same compaction is the summary."""
    compactor = FallbackCompactor(
        ResponsesCompactor(model="m", client=client), SummaryCompactor(model="m", client=client)
    )
    session = store.session("s", compactor=compactor)
    answer = await client.responses.create(model="m", input="hello")
    await session.append([user("hello"), *(item.model_dump(exclude_unset=True) for item in answer.output)])
    endpoint.fail_next(Fault.not_found(), path="compact")

    report = await session.compact(force=True, response_id=answer.id, store=True)

    assert (report.status, report.mode, report.model_calls) == ("applied", "input", 2)
    assert paths(endpoint)[1:] == ["responses/compact", "responses"]
    assert "previous_response_id" in (endpoint.requests[1].body or {})


async def test_the_second_never_gets_a_chain(
    compactor: FallbackCompactor, endpoint: ResponsesEndpoint
) -> None:
    endpoint.fail_next(Fault.not_found(), path="compact")

    for _ in range(2):
        with pytest.raises(CompactorError, match="second one needs the items") as refused:
            await compactor.compact(CHAIN)
        assert refused.value.kind == "no_chain"

    assert paths(endpoint) == ["responses/compact"]


async def test_the_failure_of_the_second_is_reported_with_the_first_behind_it(
    endpoint: ResponsesEndpoint, compactor: FallbackCompactor
) -> None:
    endpoint.fail_next(Fault.not_found(), path="compact")

    with pytest.raises(CompactorError, match="sealed") as refused:
        await compactor.compact(request([sealed(), user("hello")]))

    context = refused.value.__context__
    assert isinstance(context, CompactorError)
    assert context.kind == "unsupported"


async def test_a_502_alone_is_tried_again_by_the_engine(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI, store: SessionStore
) -> None:
    """Without a second compactor it is a failure that may pass."""
    policy = CompactionPolicy(model_retry=RetryPolicy(max_attempts=2, wait_initial_s=0))
    session = store.session("s", compactor=ResponsesCompactor(model="m", client=client), policy=policy)
    await session.append(turn(1))
    endpoint.fail_next(Fault.error(502), path="compact")

    report = await session.compact(force=True)

    assert (report.status, report.model_calls) == ("applied", 2)


async def test_callables_and_fallbacks_can_be_either(endpoint: ResponsesEndpoint, clock: Clock) -> None:
    """A callable says that it cannot with an error of its own."""
    asked: list[str] = []

    async def cannot(request: CompactionRequest) -> Compacted:
        asked.append("cannot")
        raise CompactorError("not here", kind="unsupported")

    async def can(request: CompactionRequest) -> list[dict[str, Any]]:
        asked.append("can")
        return request.items

    compactor = FallbackCompactor(FallbackCompactor(cannot, cannot, clock=clock), can, clock=clock)

    assert [user("a")] == await compactor.compact(request([user("a")]))
    assert [user("a")] == await compactor.compact(request([user("a")]))
    assert asked == ["cannot", "cannot", "can", "can"]


@pytest.mark.parametrize("name", ["missing_s", "bad_gateway_s"])
def test_times_are_checked_when_it_is_built(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        FallbackCompactor(PruneCompactor(), PruneCompactor(), **{name: -1})


def test_what_is_no_compactor_is_refused_when_it_is_built() -> None:
    with pytest.raises(TypeError, match="a compactor has"):
        FallbackCompactor(PruneCompactor(), None)  # type: ignore[arg-type]
