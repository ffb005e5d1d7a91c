"""Random histories against the strict provider: allowed cuts are safe, the others are refused for cause."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from cas_session.compaction import cuts
from cas_session.compaction.cuts import Cut, allowed_cuts, find_cut
from tests.compaction.strict_history import StrictProvider, is_user, unanswered

Item = dict[str, Any]

NOW = datetime(2025, 6, 1, tzinfo=UTC)
SUMMARY: list[Item] = [{"type": "compaction", "id": "cmp_new", "encrypted_content": "..."}]
PLAIN_CALLS = ["function_call", "custom_tool_call", "computer_call", "shell_call", "apply_patch_call"]
SERVER_CALLS = [
    "web_search_call",
    "file_search_call",
    "mcp_list_tools",
    "image_generation_call",
    "x_new_call",
]


class Conversation:
    """Writes a history step by step: what a model, its tools and its users may do, in any order."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.items: list[Item] = []
        self.due: list[Item] = []  # outputs that have not landed yet
        self._count = 0
        self._server_answers = rng.random() < 0.7
        self._response_end = 0

    def __repr__(self) -> str:
        return "\n".join(["", *map(str, self.items), f"due: {self.due}"])

    def step(self) -> None:
        writer = self.rng.choice(
            [self.user, self.response, self.response, self.land, self.land, self.land, self.rare]
        )
        writer()

    def user(self) -> None:
        self.items.append({"role": "user", "content": self._fresh("hello")})

    def response(self) -> None:
        self._begin_response()
        for _ in range(self.rng.choice([0, 1, 1, 2])):
            self.items.append({"type": "reasoning", "id": self._fresh("rs"), "summary": []})
        makers = [
            self.message,
            self.call,
            self.call,
            self.server_call,
            self.program,
            self.search,
            self.approval,
        ]
        for _ in range(self.rng.choice([1, 1, 2, 3])):
            self.rng.choice(makers)()
        if self.rng.random() < 0.2:
            self.items.append({"type": "reasoning", "id": self._fresh("rs"), "summary": []})
            self.rng.choice(makers)()
        self._response_end = len(self.items)

    def message(self) -> None:
        identity = {"id": self._fresh("msg")} if self.rng.random() < 0.5 else {}
        self.items.append({"type": "message", "role": "assistant", "content": "well", **identity})

    def call(self, caller: Item | None = None) -> None:
        extra = {"caller": caller} if caller else {}
        kind = self.rng.choice([*PLAIN_CALLS, "local_shell_call"])
        if kind == "local_shell_call" and not caller:
            call_id, own_id = self._repeating(), self._fresh("lsh")
            self.items.append({"type": kind, "call_id": call_id, "id": own_id})
            name = self.rng.choice([{"id": call_id}, {"call_id": call_id, "id": "out"}, {"id": own_id}])
            self.due.append({"type": "local_shell_call_output", "output": "", **name})
            return
        kind = "function_call" if kind == "local_shell_call" else kind
        call_id = self._repeating()
        self.items.append({"type": kind, "call_id": call_id, **extra})
        self.due.append({"type": f"{kind}_output", "call_id": call_id, **extra})

    def server_call(self) -> None:
        if self.rng.random() < 0.2:  # a hosted shell answers inside the response
            call_id = self._fresh("hosted")
            place = {"type": "container_reference", "container_id": "c"}
            self.items.append({"type": "shell_call", "call_id": call_id, "environment": place})
            self.items.append({"type": "shell_call_output", "call_id": call_id, "output": []})
        else:
            self.items.append({"type": self.rng.choice(SERVER_CALLS), "id": self._fresh("srv")})

    def program(self) -> None:
        call_id = self._repeating()
        self.items.append({"type": "program", "id": self._fresh("prg"), "call_id": call_id})
        for _ in range(self.rng.choice([0, 1, 2])):
            self.call({"type": "program", "caller_id": call_id})
        self.due.append({"type": "program_output", "call_id": call_id, "id": self._fresh("prgo")})

    def search(self) -> None:
        place = self.rng.choice(["client", "server"])
        name = {"call_id": self._repeating()} if self.rng.random() < 0.3 else {}
        self.items.append({"type": "tool_search_call", "execution": place, "arguments": {}, **name})
        output = {"type": "tool_search_output", "execution": place, "tools": [], **name}
        if place == "client":
            self.due.append(output)
        elif self._server_answers:
            self.items.append(output)

    def approval(self) -> None:
        name = self._fresh("mcpr")  # the provider's own id, so it does not repeat
        self.items.append({"type": "mcp_approval_request", "id": name, "name": "f"})
        approve = self.rng.random() < 0.7
        self.due.append({"type": "mcp_approval_response", "approval_request_id": name, "approve": approve})

    def land(self) -> None:
        if self.due:
            self._land(self.due.pop(self.rng.randrange(len(self.due))))

    def land_all(self) -> None:
        while self.due:
            self.land()

    def rare(self) -> None:
        kind = self.rng.choice(["settings", "developer", "in-band compaction", "interrupted"])
        if kind == "settings":
            update: Item = self.rng.choice(
                [
                    {"type": "additional_tools", "role": "developer", "tools": []},
                    {"type": "configuration_update", "reasoning": {"effort": "low"}},
                    {"type": "configuration_update", "text": {}, "reasoning": {}},
                ]
            )
            self.items.append(dict(update))
        elif kind == "developer":
            self.items.append({"type": "message", "role": "developer", "content": "be brief"})
        elif kind == "in-band compaction" and self.rng.random() < 0.3:
            self.items.append({"type": "compaction", "id": self._fresh("cmp"), "encrypted_content": "..."})
        elif kind == "interrupted" and self.rng.random() < 0.3:
            self.items.append({"type": "reasoning", "id": self._fresh("rs"), "summary": []})
            self.user()

    def spoil(self) -> None:
        """Put in something that no provider takes."""
        spoiler = self.rng.choice(
            [
                {"type": "function_call_output", "call_id": "nowhere", "output": ""},
                {"type": "mcp_call", "id": "mcp_x", "approval_request_id": "nowhere"},
                {"type": "item_reference", "id": "msg_x"},
                {"id": "msg_x"},
                {"type": "compaction_trigger"},
            ]
        )
        self.items.insert(self.rng.randrange(len(self.items) + 1), dict(spoiler))

    def _begin_response(self) -> None:
        """A model answers something, so what it made in one go stays apart from what it made in the next."""
        if self._response_end == len(self.items):
            self.user()

    def _land(self, output: Item) -> None:
        if output["type"] in ("program_output", "mcp_call"):
            self._begin_response()
            self._response_end = len(self.items) + 1
        self.items.append(output)
        if output.get("approve"):
            name = output["approval_request_id"]
            self.due.append({"type": "mcp_call", "id": self._fresh("mcp"), "approval_request_id": name})

    def _repeating(self) -> str:
        return self.rng.choice("abc")

    def _fresh(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}_{self._count}"


@st.composite
def conversations(draw: st.DrawFn, *, spoilt: bool = False) -> Conversation:
    conversation = Conversation(draw(st.randoms(use_true_random=False)))
    for _ in range(draw(st.integers(1, 14))):
        conversation.step()
    if draw(st.booleans()):
        conversation.land_all()
    if spoilt:
        conversation.spoil()
    return conversation


thoroughly = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@thoroughly
@given(conversations())
def test_both_halves_of_every_allowed_cut_are_accepted(conversation: Conversation) -> None:
    items = conversation.items
    provider = StrictProvider(items)
    before = provider.refuses_history(items)

    for k in allowed_cuts(items):
        assert set() == provider.refuses_request(items[:k])
        assert provider.refuses_history(SUMMARY + items[k:]) <= before


@thoroughly
@given(conversations())
def test_whatever_lands_during_the_model_call_finds_its_partner(conversation: Conversation) -> None:
    items = list(conversation.items)
    positions = allowed_cuts(items)
    conversation.land_all()
    for _ in range(3):
        conversation.step()
    landed = conversation.items[len(items) :]
    provider = StrictProvider(items + landed)
    before = provider.refuses_history(items + landed)

    for k in positions:
        assert provider.refuses_history(SUMMARY + items[k:] + landed) <= before


@thoroughly
@given(conversations())
def test_a_cut_that_is_not_allowed_would_be_refused(conversation: Conversation) -> None:
    items = list(conversation.items)
    allowed = allowed_cuts(items)
    conversation.land_all()
    landed = conversation.items[len(items) :]
    provider = StrictProvider(items + landed)
    newest_compaction = max((i for i, item in enumerate(items) if _is_compaction(item)), default=-1)

    for k in set(range(1, len(items) + 1)) - set(allowed):
        refused = (
            provider.refuses_request(items[:k])
            or provider.refuses_history(SUMMARY + items[k:]) - provider.refuses_history(items)
            or provider.refuses_history(SUMMARY + items[k:] + landed)
            - provider.refuses_history(items + landed)
        )
        event("refused" if refused else "in front of a compaction item")
        assert refused or k <= newest_compaction


@thoroughly
@given(conversations(spoilt=True))
def test_a_history_with_an_orphan_or_a_reference_is_not_cut_anywhere(conversation: Conversation) -> None:
    items = conversation.items
    broken = _broken(items)

    assert allowed_cuts(items) == []
    found = find_cut(items)
    assert not isinstance(found, Cut)
    assert found.status == "nothing_to_compact" or broken == set(found.blockers)


@thoroughly
@given(conversations(), st.data())
def test_pins_and_dead_calls_leave_a_valid_request_and_a_valid_history(
    conversation: Conversation, data: st.DataObject
) -> None:
    items = list(conversation.items)
    pins = data.draw(st.sets(st.integers(0, len(items))))
    ages = data.draw(st.lists(st.sampled_from([None, 0.1, 3]), min_size=len(items), max_size=len(items)))
    turns = data.draw(st.integers(0, 3))
    found = find_cut(
        items,
        keep_last_turns=turns,
        pinned=lambda item: any(items[i] is item for i in pins if i < len(items)),
        created_at=[None if age is None else NOW - timedelta(days=age) for age in ages],
        now=NOW,
    )
    assume(isinstance(found, Cut))
    assert isinstance(found, Cut)
    conversation.land_all()
    landed = conversation.items[len(items) :]
    everything = items + landed
    provider = StrictProvider(everything)
    event("with dead calls" if found.dead else "without dead calls")
    compacted = SUMMARY + [items[i] for i in found.keep] + items[found.position :]

    assert set() == provider.refuses_request([items[i] for i in found.send])
    assert provider.refuses_history(compacted) <= provider.refuses_history(items)
    assert provider.refuses_history(compacted + landed) <= provider.refuses_history(everything)
    assert list(range(found.position)) == sorted([*found.send, *found.keep])
    assert set(found.dead) <= set(found.keep)
    assert {i for i in pins if i < found.position and not _is_compaction(items[i])} <= set(found.keep)
    assert not any(_is_compaction(items[i]) for i in found.keep)
    assert turns <= sum(is_user(item) for item in items[found.position :])


@thoroughly
@given(conversations())
def test_the_cut_that_is_found_is_the_largest_at_the_start_of_a_turn(conversation: Conversation) -> None:
    items = conversation.items
    found = find_cut(items)
    assume(isinstance(found, Cut))
    assert isinstance(found, Cut)
    # Settings alone are nothing to compact: a cut must send something that no compaction wrote.
    folded = max((i + 1 for i, item in enumerate(items) if _is_compaction(item)), default=0)
    new = [i for i, item in enumerate(items) if i >= folded and item.get("type") not in cuts.SETTINGS]
    useful = [k for k in allowed_cuts(items) if any(i < k for i in new)]
    turns = [k for k in useful if k == len(items) or is_user(items[k])]

    assert found.position == max(turns or useful)


def _is_compaction(item: Item) -> bool:
    return item.get("type") == "compaction"


def _broken(items: list[Item]) -> set[int]:
    refused = StrictProvider(items).refuses_history(items)
    return {i for i, item in enumerate(items) if {("orphan", id(item)), ("unsendable", id(item))} & refused}


@pytest.mark.parametrize("family", cuts.FAMILIES, ids=lambda family: family.call)
def test_the_strict_provider_and_the_table_name_the_same_families(family: cuts.Family) -> None:
    call = {"type": family.call, **dict.fromkeys(family.call_keys, "x")}
    output = {"type": family.output, **dict.fromkeys(family.output_keys, "x")}

    assert [call] == unanswered([call])
    assert unanswered([call, output]) == []
    assert allowed_cuts([call, output]) == [2]
