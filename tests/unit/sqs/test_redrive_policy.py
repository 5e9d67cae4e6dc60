"""Which redrive policy is in force, whatever texts a catalog has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from foqs.catalog.document import QueueEntry
from foqs.sqs.redrive_policy import Redrive, allows, redrive_in_force, sources_of
from tests.support.sqs_world import arn, policy


def queue(**attributes: Any) -> QueueEntry:
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in attributes.items()}
    return QueueEntry(texts)


def test_a_policy_in_force_has_the_retention_of_its_target() -> None:
    queues = {"mail": queue(RedrivePolicy=policy("dead", 3)), "dead": queue(MessageRetentionPeriod="60")}
    assert redrive_in_force("default", "mail", queues) == Redrive("default", "mail", "dead", 3, 60_000)
    assert redrive_in_force("default", "dead", queues) is None
    assert redrive_in_force("default", "absent", queues) is None
    assert sources_of("dead", queues) == ["mail"]
    assert sources_of("mail", queues) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "1",
        '{"deadLetterTargetArn": 1, "maxReceiveCount": 1}',
        '{"deadLetterTargetArn": "dead", "maxReceiveCount": 1}',
        json.dumps({"deadLetterTargetArn": arn("dead"), "maxReceiveCount": "3"}),
        json.dumps({"deadLetterTargetArn": arn("dead")}),
        policy("absent", 3),
        policy("mail", 3),
        "[" * 8_000,
    ],
)
def test_what_is_no_usable_policy_is_not_in_force(text: str) -> None:
    queues = {"mail": queue(RedrivePolicy=text), "dead": queue()}
    assert redrive_in_force("default", "mail", queues) is None


@pytest.mark.parametrize(
    ("allow_policy", "is_allowed"),
    [
        ("", True),
        ({"redrivePermission": "allowAll"}, True),
        ({"redrivePermission": "denyAll"}, False),
        ({"redrivePermission": "other"}, False),
        ({"redrivePermission": "byQueue", "sourceQueueArns": [arn("mail")]}, True),
        ({"redrivePermission": "byQueue", "sourceQueueArns": [arn("other"), "x", 1]}, False),
        ({"redrivePermission": "byQueue"}, False),
        ({"redrivePermission": "byQueue", "sourceQueueArns": 1}, False),
    ],
)
def test_the_target_says_who_may_use_it(allow_policy: Any, is_allowed: bool) -> None:
    target = queue(RedriveAllowPolicy=allow_policy)
    assert allows(target, "mail") == is_allowed
    in_force = redrive_in_force("default", "mail", {"mail": queue(RedrivePolicy=policy("dead", 1)), "dead": target})
    assert (in_force is not None) == is_allowed
