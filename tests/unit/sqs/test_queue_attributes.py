"""Attributes of queues: ranges, policies, tags and permissions."""

from __future__ import annotations

import json
from typing import Final

import pytest

from foqs.sqs.errors import SqsError
from foqs.sqs.queue_attributes import (
    check_attributes,
    check_tags,
    number,
    with_defaults,
    with_permission,
    without_permission,
)

ARN: Final = "arn:aws:sqs:eu-west-1:000000000000:dead"


def shape(attributes: dict[str, str]) -> str:
    with pytest.raises(SqsError) as refused:
        check_attributes(attributes)
    return refused.value.shape


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("DelaySeconds", 0, 900),
        ("MaximumMessageSize", 1_024, 1_048_576),
        ("MessageRetentionPeriod", 60, 1_209_600),
        ("ReceiveMessageWaitTimeSeconds", 0, 20),
        ("VisibilityTimeout", 0, 43_200),
        ("KmsDataKeyReusePeriodSeconds", 60, 86_400),
    ],
)
def test_numbers_are_within_sqs_limits(name: str, low: int, high: int) -> None:
    for value in (low, high):
        assert check_attributes({name: str(value)}) == {name: str(value)}
    for wrong in (str(low - 1), str(high + 1), "", "1.5", "x", "\u0661", "1" * 20):
        assert shape({name: wrong}) == "InvalidAttributeValue"


def test_unknown_and_read_only_names_are_refused_and_spaces_around_a_name_are_ignored() -> None:
    assert shape({"Other": "1"}) == "InvalidAttributeName"
    assert shape({"QueueArn": ARN}) == "InvalidAttributeName"
    assert check_attributes({"VisibilityTimeout ": "1"}) == {"VisibilityTimeout": "1"}


@pytest.mark.parametrize(
    "name", ["FifoQueue", "ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit"]
)
@pytest.mark.parametrize("value", ["true", "false", "perQueue"])
def test_a_standard_queue_has_no_attribute_of_a_fifo_queue(name: str, value: str) -> None:
    assert shape({name: value}) == "InvalidAttributeName"


def test_a_queue_has_one_kind_of_encryption() -> None:
    assert shape({"KmsMasterKeyId": "key", "SqsManagedSseEnabled": "true"}) == "InvalidAttributeName"
    key = {"KmsMasterKeyId": "key", "SqsManagedSseEnabled": "false"}
    assert check_attributes({"KmsMasterKeyId": "key"}) == check_attributes(key) == key
    managed = {"KmsMasterKeyId": "", "SqsManagedSseEnabled": "true"}
    assert check_attributes({"SqsManagedSseEnabled": "true"}) == check_attributes(managed) == managed
    for neither in ({"KmsMasterKeyId": ""}, {"SqsManagedSseEnabled": "false"}):
        assert check_attributes(neither) == neither


def test_a_redrive_policy_is_kept_with_a_number() -> None:
    policy = json.dumps({"deadLetterTargetArn": ARN, "maxReceiveCount": "3"})
    kept = check_attributes({"RedrivePolicy": policy})["RedrivePolicy"]
    assert json.loads(kept) == {"deadLetterTargetArn": ARN, "maxReceiveCount": 3}
    assert check_attributes({"RedrivePolicy": "{}"}) == {"RedrivePolicy": ""}


@pytest.mark.parametrize(
    "policy",
    [
        "x",
        "[]",
        {"maxReceiveCount": 1},
        {"deadLetterTargetArn": ARN},
        {"deadLetterTargetArn": ARN, "maxReceiveCount": 0},
        {"deadLetterTargetArn": ARN, "maxReceiveCount": 1_001},
        {"deadLetterTargetArn": ARN, "maxReceiveCount": True},
        {"deadLetterTargetArn": "x", "maxReceiveCount": 1},
        {"deadLetterTargetArn": ARN, "maxReceiveCount": 1, "other": 1},
        {"deadLetterTargetArn": ARN, "maxReceiveCount": 1, "pad": "x" * 9_000},
    ],
    ids=str,
)
def test_a_wrong_redrive_policy_is_refused(policy: object) -> None:
    text = policy if isinstance(policy, str) else json.dumps(policy)
    assert shape({"RedrivePolicy": text}) in ("InvalidAttributeValue", "InvalidParameterValueException")


def test_a_redrive_allow_policy_names_queues_only_with_by_queue() -> None:
    for policy in ({"redrivePermission": "allowAll"}, {"redrivePermission": "byQueue", "sourceQueueArns": [ARN]}):
        text = json.dumps(policy)
        assert check_attributes({"RedriveAllowPolicy": text}) == {"RedriveAllowPolicy": text}
    for wrong in (
        {"redrivePermission": "some"},
        {"redrivePermission": "byQueue"},
        {"redrivePermission": "denyAll", "sourceQueueArns": [ARN]},
        {"redrivePermission": "byQueue", "sourceQueueArns": ["x"]},
    ):
        assert shape({"RedriveAllowPolicy": json.dumps(wrong)}) == "InvalidParameterValueException"


def test_defaults_are_those_of_sqs() -> None:
    assert number({}, "VisibilityTimeout") == 30
    assert with_defaults({"DelaySeconds": "5"})["DelaySeconds"] == "5"
    assert with_defaults({})["MaximumMessageSize"] == "1048576"


def test_tags_are_bounded() -> None:
    assert check_tags({"a": ""}, "mail", {"b": "1"}) == {"a": "", "b": "1"}
    for wrong in ({}, {"": "x"}, {"k" * 129: "x"}, {"k": "v" * 257}, {f"k{n}": "v" for n in range(51)}):
        with pytest.raises(SqsError):
            check_tags(wrong, "mail", {})


def test_a_permission_is_a_statement_of_the_policy() -> None:
    policy = with_permission("", ARN, "one", ["111111111111"], ["*"])
    policy = with_permission(policy, ARN, "two", ["222211111111"], ["SendMessage"])
    parsed = json.loads(policy)
    assert [statement["Sid"] for statement in parsed["Statement"]] == ["one", "two"]
    assert parsed["Statement"][1]["Action"] == "SQS:SendMessage"
    assert [statement["Sid"] for statement in json.loads(without_permission(policy, "two"))["Statement"]] == ["one"]
    with pytest.raises(SqsError, match="can't find label"):
        without_permission(policy, "three")
    with pytest.raises(SqsError, match="Already exists"):
        with_permission(policy, ARN, "one", ["111111111111"], ["SendMessage"])
