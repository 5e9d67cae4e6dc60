"""Which redrive policy is in force, whatever texts a catalog has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from foqs.catalog.document import QueueEntry
from foqs.sqs.redrive_policy import Redrive, allowed_sources, redrive_in_force, sources_of
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
    ("allow_policy", "allowed"),
    [
        ("", None),
        ({"redrivePermission": "allowAll"}, None),
        ({"redrivePermission": "denyAll"}, []),
        ({"redrivePermission": "other"}, []),
        ({"redrivePermission": "byQueue", "sourceQueueArns": [arn("mail")]}, [arn("mail")]),
        ({"redrivePermission": "byQueue", "sourceQueueArns": [arn("other"), "x", 1]}, [arn("other")]),
        ({"redrivePermission": "byQueue"}, []),
        ({"redrivePermission": "byQueue", "sourceQueueArns": 1}, []),
    ],
)
def test_the_target_says_which_queues_may_use_it(allow_policy: Any, allowed: list[str] | None) -> None:
    target = queue(RedriveAllowPolicy=allow_policy)
    sources = allowed_sources(target)
    assert (None if sources is None else [source.arn for source in sources]) == allowed
    in_force = redrive_in_force("default", "mail", {"mail": queue(RedrivePolicy=policy("dead", 1)), "dead": target})
    assert (in_force is not None) == (allowed is None or arn("mail") in allowed)
