"""The rules of cutting, one sentence each."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from openai.types import responses
from openai.types.responses import response_input_item_param, response_item, response_output_item
from typing_extensions import is_typeddict

from cas_session.compaction.cuts import FAMILIES, KNOWN_TYPES, Cut, Family, NoCut, allowed_cuts, find_cut

Item = dict[str, Any]

NOW = datetime(2025, 6, 1, 12, tzinfo=UTC)
USER: Item = {"role": "user", "content": "hello"}
REPLY: Item = {"type": "message", "role": "assistant", "content": "hi"}
COMPACTION: Item = {"type": "compaction", "encrypted_content": "..."}
SEARCH: Item = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
_numbers = count()


def reasoning() -> Item:
    return {"type": "reasoning", "id": f"rs_{next(_numbers)}", "summary": []}


def call(call_id: str = "c1", kind: str = "function_call") -> Item:
    return {"type": kind, "call_id": call_id, "name": "f", "arguments": "{}"}


def output(call_id: str = "c1", kind: str = "function_call_output") -> Item:
    return {"type": kind, "call_id": call_id, "output": "done"}


def cut(items: list[Item], **options: Any) -> Cut:
    found = find_cut(items, **options)
    assert isinstance(found, Cut), found
    return found


def ages(*days: float | None) -> dict[str, Any]:
    return {"created_at": [None if d is None else NOW - timedelta(days=d) for d in days], "now": NOW}


# Which cut


def test_a_finished_history_is_cut_at_its_end() -> None:
    items = [USER, REPLY, USER, reasoning(), call(), output(), REPLY]

    assert Cut(position=7, send=(0, 1, 2, 3, 4, 5, 6)) == find_cut(items)


def test_the_start_of_a_turn_goes_before_a_larger_cut_in_the_middle_of_one() -> None:
    items = [USER, REPLY, USER, call("c1"), output("c1"), call("c2")]

    assert allowed_cuts(items) == [1, 2, 3, 5]
    assert cut(items).position == 2


def test_without_a_turn_to_cut_at_the_largest_safe_cut_is_taken() -> None:
    items = [COMPACTION, call("c1"), output("c1"), REPLY, call("c2")]

    assert cut(items).position == 4


@pytest.mark.parametrize(("turns", "position"), [(0, 6), (1, 4), (2, 2)])
def test_the_newest_turns_are_kept(turns: int, position: int) -> None:
    items = [USER, REPLY, USER, REPLY, USER, REPLY]

    assert position == cut(items, keep_last_turns=turns).position


def test_a_history_with_no_more_turns_than_are_kept_has_nothing_to_compact() -> None:
    assert NoCut("nothing_to_compact") == find_cut([USER, REPLY, USER, REPLY], keep_last_turns=2)
    assert NoCut("nothing_to_compact") == find_cut([USER, REPLY, USER, REPLY], keep_last_turns=9)


def test_a_turn_that_another_group_reaches_into_is_kept_with_that_group() -> None:
    items = [USER, REPLY, USER, call(), USER, output(), REPLY]

    assert cut(items, keep_last_turns=1).position == 2


def test_a_smaller_cut_can_be_asked_for() -> None:
    items = [USER, REPLY] * 4

    assert cut(items, at_most=5).position == 4


def test_negative_turns_and_misaligned_times_are_refused() -> None:
    with pytest.raises(ValueError, match="keep_last_turns"):
        find_cut([USER], keep_last_turns=-1)
    with pytest.raises(ValueError, match="created_at"):
        find_cut([USER], created_at=[], now=NOW)


# Calls and their outputs


def test_a_cut_never_parts_a_call_from_its_output() -> None:
    items = [USER, call("c1"), call("c2"), output("c2"), output("c1"), REPLY]

    assert allowed_cuts(items) == [1, 5, 6]


def test_a_cut_stops_in_front_of_an_open_call_and_its_reasoning() -> None:
    items = [USER, REPLY, USER, reasoning(), call("c1"), call("c2"), output("c2")]

    assert allowed_cuts(items) == [1, 2, 3]


def test_an_open_call_that_leaves_nothing_to_cut_is_reported() -> None:
    assert NoCut("open_call", (1,)) == find_cut([COMPACTION, call(), USER, REPLY])


def test_an_open_call_before_the_newest_compaction_blocks_every_cut() -> None:
    assert NoCut("open_call", (1,)) == find_cut([USER, call(), COMPACTION, USER, REPLY])


def test_a_repeated_id_answers_the_oldest_open_call() -> None:
    once = [USER, call(), output(), USER, call(), output()]
    crossed = [USER, call(), call(), output()]

    assert allowed_cuts(once) == [1, 3, 4, 6]
    assert allowed_cuts(crossed) == [1]  # 1 answers, 2 still waits


def test_families_do_not_mix() -> None:
    items = [USER, call(kind="custom_tool_call"), output(kind="function_call_output"), REPLY]

    assert NoCut("no_safe_cut", (2,)) == find_cut(items)


def test_an_output_without_its_call_pins_everything() -> None:
    items = [USER, REPLY, output("lost"), USER, REPLY]

    assert allowed_cuts(items) == []
    assert NoCut("no_safe_cut", (2,)) == find_cut(items)


def test_a_second_output_stays_with_the_call_that_it_answers_again() -> None:
    assert allowed_cuts([USER, call(), output(), REPLY, output(), REPLY]) == [1, 5, 6]


@pytest.mark.parametrize(
    "name", [{"call_id": "c1"}, {"id": "c1"}, {"id": "lsh_1"}, {"call_id": "c1", "id": "o"}]
)
def test_a_local_shell_output_names_its_call_by_id_or_by_call_id(name: Item) -> None:
    local = {"type": "local_shell_call", "id": "lsh_1", "call_id": "c1"}

    assert allowed_cuts([local, {"type": "local_shell_call_output", "output": "", **name}]) == [2]


def test_nameless_tool_searches_are_answered_in_order() -> None:
    search = {"type": "tool_search_call", "execution": "client", "arguments": {}}
    found = {"type": "tool_search_output", "execution": "client", "tools": []}

    assert allowed_cuts([search, found, search, found, search]) == [2, 4]
    assert allowed_cuts([search, search, found, found]) == [4]


def test_a_tool_search_of_the_server_waits_for_nothing() -> None:
    server = {"type": "tool_search_call", "execution": "server", "arguments": {}}
    client = {"type": "tool_search_call", "execution": "client", "arguments": {}}
    found = {"type": "tool_search_output", "execution": "client", "tools": []}

    assert allowed_cuts([server, USER, client, found]) == [1, 2, 4]


@pytest.mark.parametrize("answer", [True, False])
def test_an_approval_is_one_group_with_its_answer_and_its_call(answer: bool) -> None:
    request = {"type": "mcp_approval_request", "id": "mcpr_1", "name": "f", "arguments": "{}"}
    response = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": answer}
    run = {"type": "mcp_call", "id": "mcp_1", "approval_request_id": "mcpr_1", "name": "f"}

    assert allowed_cuts([USER, request]) == [1]
    assert ([1] if answer else [1, 3]) == allowed_cuts([USER, request, response])
    assert allowed_cuts([USER, request, response, run, REPLY]) == [1, 4, 5]


def test_an_mcp_call_that_needed_no_approval_stands_alone() -> None:
    assert allowed_cuts([{"type": "mcp_call", "id": "m", "approval_request_id": None}, REPLY]) == [1, 2]


def test_a_program_is_one_group_with_all_that_it_called() -> None:
    by_program = {"caller": {"type": "program", "caller_id": "p1"}}
    program = {"type": "program", "call_id": "p1", "id": "prg", "code": "", "fingerprint": ""}
    called = [call() | by_program, output() | by_program, SEARCH | by_program]
    items = [USER, program, *called, output("p1", "program_output")]

    assert allowed_cuts(items) == [1, 6]
    assert allowed_cuts(items[:-1]) == [1]
    assert NoCut("no_safe_cut", (1, 2)) == find_cut([USER, *called[:2]])


def test_a_call_whose_caller_is_the_model_itself_stands_alone() -> None:
    assert allowed_cuts([call() | {"caller": {"type": "direct"}}, output()]) == [2]


# Reasoning


def test_reasoning_stays_with_all_that_was_made_right_behind_it() -> None:
    items = [USER, reasoning(), reasoning(), call("c1"), call("c2"), output("c1"), output("c2"), REPLY]

    assert allowed_cuts(items) == [1, 7, 8]


@pytest.mark.parametrize(
    "follower",
    [
        REPLY,
        {**REPLY, "id": "msg_1"},
        SEARCH,
        {"type": "mcp_list_tools", "id": "l"},
        {"type": "x_future_call"},
    ],
)
def test_reasoning_binds_messages_and_server_calls_too(follower: Item) -> None:
    assert allowed_cuts([USER, reasoning(), follower, USER]) == [1, 3, 4]


def test_each_reasoning_binds_up_to_the_next_one() -> None:
    assert allowed_cuts([USER, reasoning(), SEARCH, reasoning(), SEARCH, REPLY]) == [1, 3, 6]


def test_reasoning_reaches_over_outputs_that_the_server_made() -> None:
    hosted = {"environment": {"type": "container_reference", "container_id": "c"}}
    shell = [call("s", "shell_call"), output("s", "shell_call_output")]
    search = [{"type": kind, "execution": "server"} for kind in ("tool_search_call", "tool_search_output")]

    assert allowed_cuts([reasoning(), shell[0] | hosted, shell[1], REPLY]) == [4]
    assert allowed_cuts([reasoning(), *search, REPLY]) == [4]
    assert allowed_cuts([reasoning(), call("p", "program"), output("p", "program_output"), REPLY]) == [4]
    assert allowed_cuts([reasoning(), *shell, REPLY]) == [3, 4]


def test_reasoning_at_the_end_still_waits_for_what_follows_it() -> None:
    assert allowed_cuts([USER, REPLY, USER, reasoning()]) == [1, 2, 3]
    assert NoCut("no_safe_cut", (1,)) == find_cut([COMPACTION, reasoning()])


def test_reasoning_that_was_cut_off_blocks_until_it_is_dead() -> None:
    items = [COMPACTION, reasoning(), USER, REPLY]

    assert NoCut("no_safe_cut", (1,)) == find_cut(items, **ages(0.1, 0.1, 0.1, 0.1))
    assert Cut(4, send=(0, 2, 3), keep=(1,), dead=(1,)) == find_cut(items, **ages(2, 2, 2, 2))


# Earlier compactions


def test_a_cut_lies_behind_the_newest_compaction_item() -> None:
    assert allowed_cuts([USER, COMPACTION, USER, REPLY, COMPACTION, USER, REPLY]) == [5, 6, 7]


@pytest.mark.parametrize("items", [[], [COMPACTION], [USER, USER, COMPACTION]])
def test_what_earlier_compactions_wrote_is_nothing_to_compact(items: list[Item]) -> None:
    assert NoCut("nothing_to_compact") == find_cut(items)


def test_a_compaction_may_have_written_more_than_its_compaction_item() -> None:
    items = [COMPACTION, USER, USER]

    assert cut(items).position == 3
    assert NoCut("nothing_to_compact") == find_cut(items, compacted=3)
    assert cut([*items, REPLY], compacted=3).position == 4


def test_a_compaction_item_that_nobody_here_wrote_can_be_compacted_with_what_it_stands_for() -> None:
    assert cut([USER, REPLY, COMPACTION], compacted=0).position == 3


def test_turns_to_keep_that_reach_over_a_compaction_item_leave_nothing_to_compact() -> None:
    items = [USER, REPLY, USER, COMPACTION, USER, REPLY]

    assert NoCut("nothing_to_compact") == find_cut(items, compacted=0, keep_last_turns=2)


# What stays word for word


def test_a_pinned_item_is_kept_and_not_sent() -> None:
    items = [USER, {**USER, "pin": True}, REPLY]

    assert Cut(3, send=(0, 2), keep=(1,)) == find_cut(items, pinned=lambda item: "pin" in item)


def test_a_pin_takes_its_whole_group() -> None:
    items = [USER, reasoning(), call("c1"), call("c2"), output("c1"), output("c2"), REPLY]

    assert cut(items, pinned=lambda item: item.get("call_id") == "c2").keep == (1, 2, 3, 4, 5)


def test_a_compaction_item_cannot_be_pinned_for_it_would_hide_the_new_one() -> None:
    items = [COMPACTION, USER, REPLY]

    assert Cut(3, send=(0, 2), keep=(1,)) == find_cut(items, pinned=lambda item: item is not REPLY)


def test_a_history_that_is_pinned_throughout_has_nothing_to_compact() -> None:
    assert NoCut("nothing_to_compact") == find_cut([USER, REPLY], pinned=lambda item: True)


def test_a_pin_does_not_let_a_cut_pass_an_open_call() -> None:
    items = [USER, REPLY, USER, call()]

    assert cut(items, pinned=lambda item: item.get("type") == "function_call").position == 2


def test_the_newest_settings_stay_in_force() -> None:
    tools: Item = {"type": "additional_tools", "role": "developer", "tools": []}
    effort: Item = {"type": "configuration_update", "reasoning": {"effort": "low"}}
    text: Item = {"type": "configuration_update", "text": {"format": {"type": "text"}}}
    items = [tools, effort, text, USER, tools, effort, REPLY]

    assert Cut(7, send=(0, 1, 3, 6), keep=(2, 4, 5)) == find_cut(items)
    assert NoCut("nothing_to_compact") == find_cut([COMPACTION, tools, effort])


# Dead calls

DEAD = [USER, reasoning(), call("c1"), call("c2"), output("c2"), USER, REPLY]


def test_a_dead_call_is_kept_with_its_group_and_named() -> None:
    assert Cut(7, send=(0, 5, 6), keep=(1, 2, 3, 4), dead=(2,)) == find_cut(DEAD, **ages(*[2] * 7))


@pytest.mark.parametrize(
    ("items", "times"),
    [
        (DEAD, {}),
        (DEAD, ages(*[0.9] * 7)),
        (DEAD, ages(*[None] * 7)),
        (DEAD[:5], ages(*[2] * 5)),
    ],
    ids=["ages not given", "younger than a day", "age unknown", "no later user message"],
)
def test_a_call_that_may_still_be_answered_is_not_dead(items: list[Item], times: dict[str, Any]) -> None:
    assert Cut(1, send=(0,)) == find_cut(items, **times)


def test_the_age_of_a_dead_call_can_be_set() -> None:
    assert cut(DEAD, open_call_age_s=600, **ages(*[0.1] * 7)).dead == (2,)


def test_a_group_with_one_call_alive_is_not_dead() -> None:
    items = [USER, reasoning(), call("c1"), call("c2"), USER, REPLY]

    assert cut(items, **ages(2, 2, 2, 0.1, 0.1, 0.1)).position == 1


def test_a_call_that_an_earlier_compaction_kept_is_dead_however_new_its_row_is() -> None:
    items = [COMPACTION, call(), USER, REPLY]

    assert Cut(4, send=(0, 2, 3), keep=(1,), dead=(1,)) == find_cut(items, compacted=2)


def test_an_approval_can_be_dead() -> None:
    items = [{"type": "mcp_approval_request", "id": "mcpr_1"}, USER, REPLY]

    assert Cut(3, send=(1, 2), keep=(0,), dead=(0,)) == find_cut(items, **ages(2, 2, 2))


# Types


@pytest.mark.parametrize(
    "item",
    [
        {"type": "item_reference", "id": "i"},
        {"id": "i"},
        {"id": "i", "type": None},
        {"type": "compaction_trigger"},
    ],
)
def test_what_only_a_request_may_hold_makes_every_cut_unsafe(item: Item) -> None:
    assert NoCut("no_safe_cut", (1,)) == find_cut([USER, item, USER, REPLY])


@pytest.mark.parametrize("kind", ["x_search_call", None, 7, [], {}])
def test_an_unknown_type_stands_alone_and_is_reported(kind: object) -> None:
    items = [USER, {"type": kind, "data": 1}, REPLY]

    assert allowed_cuts(items) == [1, 2, 3]
    assert cut(items).unknown == (1,)


def test_odd_keys_do_not_break_the_reading() -> None:
    odd = {"type": "function_call", "call_id": ["x"], "caller": "me", "approval_request_id": {}}

    assert allowed_cuts([odd, {"type": "function_call_output", "call_id": None}, {}]) == [2, 3]


def test_every_item_type_of_the_installed_openai_package_is_known() -> None:
    unions = (
        response_input_item_param.ResponseInputItemParam,
        response_item.ResponseItem,
        response_output_item.ResponseOutputItem,
        responses.ResponseInputItem,
    )
    types = {name for union in unions for name in _type_names(union)}

    assert {"message", "reasoning", "compaction", "program_output"} <= types
    assert set() == types - KNOWN_TYPES


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.call)
def test_the_keys_of_each_family_are_keys_of_the_installed_types(family: Family) -> None:
    params = {
        name: get_type_hints(member).keys()
        for member in get_args(response_input_item_param.ResponseInputItemParam)
        for name in _type_names(member)
    }

    assert set(family.call_keys) <= params[family.call]
    # openai-agents writes call_id where the API has none.
    extra = {"call_id"} if family.call == "local_shell_call" else set()
    assert set(family.output_keys) <= params[family.output] | extra


# The module


def test_importing_the_module_does_not_load_the_provider() -> None:
    script = "import sys, cas_session.compaction.output; sys.exit('openai' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_ten_thousand_items_are_read_in_a_fraction_of_a_second() -> None:
    turn = [USER, reasoning(), call("c1"), call("c2"), output("c2"), output("c1"), REPLY]
    open_calls = [call("c1") for _ in range(5_000)]
    started = time.perf_counter()
    find_cut(turn * 1_430, keep_last_turns=3, pinned=lambda item: False)
    find_cut(open_calls + [output("c1") for _ in range(5_000)])
    find_cut([output("lost") for _ in range(10_000)])
    elapsed_s = time.perf_counter() - started

    assert elapsed_s < 2  # some 0.1 s; a quadratic reading takes minutes


def _type_names(annotation: Any) -> set[str]:
    """The literals of the ``type`` keys of a type, of a union's members, of an annotated one."""
    if get_origin(annotation) is not None:
        return {name for member in get_args(annotation) for name in _type_names(member)}
    if hasattr(annotation, "model_fields"):
        return set(_literals(annotation.model_fields["type"].annotation))
    return set(_literals(get_type_hints(annotation).get("type"))) if is_typeddict(annotation) else set()


def _literals(annotation: Any) -> list[str]:
    found = []
    for argument in get_args(annotation):
        found += [argument] if isinstance(argument, str) else _literals(argument)
    return found
