"""PruneCompactor: what it drops, what it keeps, and that nothing is parted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cas_session import CompactionPolicy, CompactorError, SessionStore
from cas_session.compaction.cuts import is_user_message, item_type
from cas_session.compactors import PruneCompactor
from cas_session.testing.endpoint import ResponsesEndpoint
from cas_session.testing.strict import check_links
from tests.compactors.histories import (
    CHAIN,
    Item,
    assistant,
    call,
    request,
    result,
    sealed,
    thought,
    turn,
    user,
)


async def pruned(items: list[Item], **options: Any) -> list[Item]:
    return list((await PruneCompactor(**options).compact(request(items))).output)


async def test_what_lies_before_the_newest_compaction_item_goes() -> None:
    older, newer = sealed("gAAAAAone"), sealed("gAAAAAtwo")

    assert [newer, *turn(3)] == await pruned([*turn(1), older, *turn(2), newer, *turn(3)])


async def test_a_call_that_is_answered_behind_the_compaction_item_stays_with_its_turn() -> None:
    """Whoever wrote such a history, an output without its call would be refused."""
    items = [*turn(1), user("a"), call("c"), sealed(), result("c"), assistant("b")]

    assert items[4:] == await pruned(items)


@pytest.mark.parametrize(("turns", "left"), [(1, [3]), (2, [2, 3]), (3, [1, 2, 3]), (9, [1, 2, 3])])
async def test_the_newest_turns_stay(turns: int, left: list[int]) -> None:
    items = [item for n in (1, 2, 3) for item in turn(n)]

    assert [item for n in left for item in turn(n)] == await pruned(items, turns=turns)


async def test_a_group_that_reaches_over_the_turn_keeps_all_of_it() -> None:
    """The approval was asked for in one turn and given in the next."""
    asked = {"type": "mcp_approval_request", "id": "a", "name": "f", "server_label": "s", "arguments": "{}"}
    given_ = {"type": "mcp_approval_response", "approval_request_id": "a", "approve": False}
    items = [*turn(1), user("send it"), asked, user("well"), given_, assistant("done")]

    assert items[5:] == await pruned(items, turns=1)


async def test_of_older_turns_the_newest_compaction_item_stays() -> None:
    """It is all that is left of what came before."""
    items = [sealed(), *turn(1), *turn(2), *turn(3)]

    assert [sealed(), *turn(3)] == await pruned(items, turns=1)


async def test_a_compaction_item_inside_the_newest_turns_ends_them() -> None:
    items = [*turn(1), *turn(2), sealed(), *turn(3)]

    assert [sealed(), *turn(3)] == await pruned(items, turns=2)


@pytest.mark.parametrize("turns", [0, -1, True, 1.5, "2"])
def test_turns_are_counted_from_one(turns: Any) -> None:
    with pytest.raises(ValueError, match="turns"):
        PruneCompactor(turns=turns)


async def test_a_chain_is_no_input() -> None:
    with pytest.raises(CompactorError) as refused:
        await PruneCompactor().compact(CHAIN)

    assert refused.value.kind == "no_chain"


async def test_through_a_session_with_no_request_at_all(
    endpoint: ResponsesEndpoint, store: SessionStore
) -> None:
    policy = CompactionPolicy(keep_last_turns=1)
    session = store.session("s", compactor=PruneCompactor(turns=1), policy=policy)
    await session.append([item for n in range(5) for item in turn(n)])

    report = await session.compact(force=True)

    assert report.status == "applied"
    assert [*turn(3), *turn(4)] == (await session.snapshot()).items
    assert endpoint.requests == []


async def test_nothing_to_drop_leaves_the_history(store: SessionStore) -> None:
    policy = CompactionPolicy(trigger=lambda context: True)
    session = store.session("s", compactor=PruneCompactor(), policy=policy)
    version = await session.append(turn(1))

    report = await session.compact()

    assert report.status == "not_smaller"
    assert version == await session.version()


async def test_the_settings_in_force_and_pins_are_kept(store: SessionStore) -> None:
    tools = {"type": "additional_tools", "role": "developer", "tools": []}
    policy = CompactionPolicy(pinned=lambda item: item.get("content") == "question 1")
    session = store.session("s", compactor=PruneCompactor(turns=1), policy=policy)
    await session.append([tools, *turn(1), *turn(2), *turn(3)])

    await session.compact(force=True)

    assert [*turn(3), tools, user("question 1")] == (await session.snapshot()).items


BLOCKS = st.sampled_from(
    [
        [user("u")],
        [assistant("a")],
        [call("x"), call("y"), result("y"), result("x")],
        [thought("rs"), call("z"), result("z")],
        [thought("rs"), assistant("b")],
        [sealed()],
        [{"type": "not_yet_invented"}],
    ]
)


@given(st.lists(BLOCKS, min_size=1, max_size=12), st.sampled_from([None, 1, 2]))
async def test_what_was_valid_stays_valid(blocks: list[list[Item]], turns: int | None) -> None:
    """And is an end of the history, with the newest compaction item before it at most."""
    items = [dict(item) for block in blocks for item in block]
    for index, item in enumerate(items):
        if "id" in item:
            item["id"] = f"{item['id']}_{index}"

    left = await pruned(items, turns=turns)

    check_links(left, {})
    compactions = [item for item in items if item_type(item) == "compaction"]
    rest = left[1:] if item_type(left[0]) == "compaction" else left
    assert rest == items[len(items) - len(rest) :]
    assert compactions[-1:] == [item for item in left if item_type(item) == "compaction"]
    if turns is not None and not compactions:
        wanted = sum(map(is_user_message, items))
        assert min(turns, wanted) == sum(map(is_user_message, left))
