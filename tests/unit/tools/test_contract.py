"""Tests of the check of the contract: planted mistakes are refused with the name of the field, additions pass."""

from __future__ import annotations

import pytest

from tests.compat.contracts_check import CONTRACT, contract, contract_tool

RECORDED = contract_tool.parse_contract(CONTRACT)


def test_the_contract_can_be_read_by_every_recorded_version() -> None:
    assert contract_tool.main(["--check"]) == 0
    assert {1, 2} <= set(contract_tool.recorded_contracts())


def test_recorded_form_is_read_back_equal() -> None:
    assert contract_tool.parse_recorded(contract_tool.render_recorded(RECORDED)) == RECORDED
    assert len(RECORDED.structs["NewItem"]) == 14
    assert RECORDED.methods["ack"] == "1: AckRequest request -> OutcomesReply, throws 1: CallFailed failed"


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("14: optional i64 key_until_ms,\n}", "14: optional i64 key_until_ms,\n 15: required i64 cost,\n}", "NewItem.cost: a new field must be optional"),
        ("  2: optional i64 token,\n", "", "Delivery.token: field 2 was removed"),
        ("3: optional string topic,\n  4: optional i32 priority,", "3: optional string topic,\n  4: optional i64 priority,", "Delivery.priority: field 4 was 'optional i32 priority' and is now 'optional i64 priority'"),
        ("  8: optional i64 lease_remaining_ms,\n", "  8: optional string owner_name,\n", "Delivery.lease_remaining_ms: field 8 was"),
        ("  10: optional i32 attempts_max,\n  /**\n   * A second", "  20: optional i32 attempts_max,\n  /**\n   * A second", "NewItem.attempts_max: its number was changed to 20"),
        ("struct Outcome {", "struct ItemOutcome {", "Outcome: this struct was removed or renamed"),
        ("  LEASED = 3,", "  LEASED = 5,", "ItemState.LEASED: the value 3 is now missing"),
        ("  DEAD = 4,\n}", "  DEAD = 4,\n  HELD = 5,\n}", "ItemState.HELD: a new value cannot be read by older peers"),
        ("GossipReply gossip(", "GossipReply exchange(", "gossip: this method was removed or renamed"),
        ("OutcomesReply redrive(", "ItemsReply redrive(", "redrive: it was"),
    ],
)  # fmt: skip
def test_planted_mistake_is_refused_with_the_name_of_the_field(old: str, new: str, sentence: str) -> None:
    changed = contract(old, new)
    assert any(problem.startswith(sentence) for problem in contract_tool.incompatible_changes(RECORDED, changed))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("14: optional i64 key_until_ms,\n}", "14: optional i64 key_until_ms,\n 15: optional i64 cost,\n}"),
        ("  KEY_ENDED = 16,", "  KEY_ENDED = 16,\n  TOO_OLD = 17,"),
        ("/** One outcome for each", "struct NewReply { 1: optional i64 items, }\n/** One outcome for each"),
        (
            "  /** Explains why",
            "  DoneReply touch(1: AckRequest request) throws (1: CallFailed failed),\n  /** Explains why",
        ),
    ],
)
def test_additions_that_older_peers_can_live_with_pass(old: str, new: str) -> None:
    assert contract_tool.incompatible_changes(RECORDED, contract(old, new)) == []
