"""The attributes of queues: names, ranges, defaults, and the policies among them.

Always true: stored attributes are texts within SQS' ranges; a default is not stored.
Pure; knows no queue.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from foqs.sqs.errors import SqsError, invalid_value, missing_parameter
from foqs.sqs.identifiers import FIFO_SUFFIX, parse_arn

MESSAGE_BYTES_MAX: Final = 1_048_576
POLICY_BYTES_MAX: Final = 8_192
TAGS_MAX: Final = 50
TAG_KEY_CHARS_MAX: Final = 128
TAG_VALUE_CHARS_MAX: Final = 256
PERMISSION_ACTIONS_MAX: Final = 7
RECEIVE_COUNT_MAX: Final = 1_000

_NUMBERS: Final[Mapping[str, tuple[int, int, int]]] = {
    "DelaySeconds": (0, 900, 0),
    "MaximumMessageSize": (1_024, MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX),
    "MessageRetentionPeriod": (60, 1_209_600, 345_600),
    "ReceiveMessageWaitTimeSeconds": (0, 20, 0),
    "VisibilityTimeout": (0, 43_200, 30),
}
"""(least, most, default) of each numeric attribute that has a default."""
_KMS_REUSE_S: Final = (60, 86_400)
SCOPE: Final = "DeduplicationScope"
SCOPE_OF_QUEUE: Final = "queue"
SCOPE_OF_GROUP: Final = "messageGroup"
_FIFO_ONLY_NAMES: Final = (SCOPE, "FifoThroughputLimit")
_FIFO_NAMES: Final = ("FifoQueue", "ContentBasedDeduplication", *_FIFO_ONLY_NAMES)
_DIGITS: Final = re.compile(r"[0-9]{1,9}", re.ASCII)
_LABEL: Final = re.compile(r"[A-Za-z0-9_-]{1,80}", re.ASCII)

READ_ONLY_NAMES: Final = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesDelayed",
    "ApproximateNumberOfMessagesNotVisible",
    "CreatedTimestamp",
    "LastModifiedTimestamp",
    "QueueArn",
)
COUNT_NAMES: Final = READ_ONLY_NAMES[:3]
SETTABLE_NAMES: Final = (
    *_NUMBERS,
    "KmsDataKeyReusePeriodSeconds",
    "KmsMasterKeyId",
    "Policy",
    "RedriveAllowPolicy",
    "RedrivePolicy",
    "SqsManagedSseEnabled",
)
KNOWN_NAMES: Final = frozenset((*READ_ONLY_NAMES, *SETTABLE_NAMES, *_FIFO_NAMES))


def number(attributes: Mapping[str, str], name: str) -> int:
    """Return a numeric attribute, or its default."""
    text = attributes.get(name)
    return _NUMBERS[name][2] if text is None else int(text)


_FIFO_VALUES: Final[Mapping[str, tuple[str, ...]]] = {
    "FifoQueue": ("true",),
    "ContentBasedDeduplication": ("false", "true"),
    SCOPE: (SCOPE_OF_QUEUE, SCOPE_OF_GROUP),
    "FifoThroughputLimit": ("perQueue", "perMessageGroupId"),
}
"""The values of each attribute of FIFO queues, the default first."""


def with_defaults(attributes: Mapping[str, str], scope: str | None = None) -> dict[str, str]:
    """Return stored attributes with the defaults of those that are not stored.

    Args:
        scope: the DeduplicationScope of the queue, if it is a FIFO queue.
    """
    defaults = {name: str(default) for name, (_, _, default) in _NUMBERS.items()}
    if scope is not None:
        defaults |= {name: values[0] for name, values in _FIFO_VALUES.items()}
    own_scope = {} if scope is None else {SCOPE: scope}
    return {**defaults, "SqsManagedSseEnabled": "true", **attributes, **own_scope}


def check_attributes(raw: Mapping[str, str], *, is_fifo: bool = False) -> dict[str, str]:
    """Return the attributes as they are stored; an empty policy stays empty, which removes it.

    Spaces around a name are ignored.

    Args:
        is_fifo: the queue is a FIFO queue.

    Raises:
        SqsError: a name is unknown or one of FIFO queues, a value is out of range, or two values exclude each other.
    """
    checked: dict[str, str] = {}
    for spaced_name, value in raw.items():
        name = spaced_name.strip()
        if is_fifo and name in _FIFO_VALUES:
            checked[name] = _check_fifo_value(name, value)
            continue
        if name in _FIFO_ONLY_NAMES:
            raise SqsError("InvalidAttributeName", f"You can specify the {name} only when FifoQueue is set to true.")
        if name not in SETTABLE_NAMES:
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {name}.")
        checked[name] = _CHECKS.get(name, _check_number)(name, value)
    return _with_one_encryption(checked)


def _with_one_encryption(checked: dict[str, str]) -> dict[str, str]:
    """Return attributes in which one kind of encryption ends the other one. Raises `SqsError` if both are wanted."""
    is_managed = checked.get("SqsManagedSseEnabled") == "true"
    if not checked.get("KmsMasterKeyId"):
        return {**checked, "KmsMasterKeyId": ""} if is_managed else checked
    if is_managed:
        raise SqsError(
            "InvalidAttributeName",
            "You can use one type of server-side encryption (SSE) at one time. You can either enable KMS SSE or SQS SSE.",
        )
    return {**checked, "SqsManagedSseEnabled": "false"}


def new_scope(attributes: Mapping[str, str]) -> str:
    """Return the DeduplicationScope of a FIFO queue that is created with these attributes."""
    return attributes.get(SCOPE) or SCOPE_OF_QUEUE


def without_scope(attributes: Mapping[str, str], scope: str) -> dict[str, str]:
    """Return new attributes of a FIFO queue without its scope, which is not stored among them.

    Args:
        scope: that of the queue.

    Raises:
        SqsError: another scope is wanted, or what the scope excludes.
    """
    if attributes.get(SCOPE, scope) != scope:
        raise SqsError(
            "InvalidAttributeValue",
            "Invalid value for the parameter DeduplicationScope. The scope decides in which shards the message groups are, so "
            "it cannot change; create another queue.",
        )
    if scope == SCOPE_OF_QUEUE and attributes.get("FifoThroughputLimit") == "perMessageGroupId":
        raise SqsError(
            "InvalidAttributeValue",
            "The perMessageGroupId value is allowed only when the value for DeduplicationScope is messageGroup.",
        )
    return {name: value for name, value in attributes.items() if name != SCOPE}


def _check_fifo_value(name: str, value: str) -> str:
    if value not in _FIFO_VALUES[name]:
        raise _invalid(name)
    return value


def check_fifo_name(name: str, attributes: Mapping[str, str]) -> None:
    """Check that a queue has the name of a FIFO queue if, and only if, it is created as one. Raises `SqsError`."""
    is_fifo = {spaced.strip(): value for spaced, value in attributes.items()}.get("FifoQueue", "").lower() == "true"
    if is_fifo and not name.endswith(FIFO_SUFFIX):
        raise invalid_value(
            "The name of a FIFO queue can only include alphanumeric characters, hyphens, or "
            "underscores, must end with .fifo suffix and be 1 to 80 in length."
        )
    if not is_fifo and name.endswith(FIFO_SUFFIX):
        raise invalid_value(
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length. "
            "A FIFO queue needs the attribute FifoQueue with the value true."
        )


def _invalid(name: str) -> SqsError:
    return SqsError("InvalidAttributeValue", f"Invalid value for the parameter {name}.")


def _check_number(name: str, value: str) -> str:
    low, high = _NUMBERS[name][:2] if name in _NUMBERS else _KMS_REUSE_S
    if not _DIGITS.fullmatch(value) or not low <= int(value) <= high:
        raise _invalid(name)
    return str(int(value))


def _check_boolean(name: str, value: str) -> str:
    if value not in ("true", "false"):
        raise _invalid(name)
    return value


def _check_key_id(name: str, value: str) -> str:
    if len(value) > 2_048 or not value.isprintable():
        raise _invalid(name)
    return value


def _check_policy(name: str, value: str) -> str:
    if value:
        _parse_object(name, value)
    return value


def _check_redrive_policy(name: str, value: str) -> str:
    policy = _parse_object(name, value) if value else {}
    if not policy:
        return ""
    for key in ("deadLetterTargetArn", "maxReceiveCount"):
        if key not in policy:
            raise _invalid_policy(name, value, f"Redrive policy does not contain mandatory attribute: {key}.")
    if set(policy) - {"deadLetterTargetArn", "maxReceiveCount"}:
        raise _invalid_policy(
            name, value, "Only following attributes are supported: [deadLetterTargetArn, maxReceiveCount]."
        )
    count = policy["maxReceiveCount"]
    if isinstance(count, str) and _DIGITS.fullmatch(count):
        count = int(count)
    if type(count) is not int or not 1 <= count <= RECEIVE_COUNT_MAX:
        raise _invalid_policy(
            name,
            value,
            f"Invalid value for maxReceiveCount: {count}, valid values are from 1 to {RECEIVE_COUNT_MAX} both inclusive.",
        )
    target = policy["deadLetterTargetArn"]
    if not isinstance(target, str) or parse_arn(target) is None:
        raise _invalid_policy(name, value, "Invalid value for deadLetterTargetArn.")
    return json.dumps({**policy, "maxReceiveCount": count})


def _check_redrive_allow_policy(name: str, value: str) -> str:
    policy = _parse_object(name, value) if value else {}
    if not policy:
        return ""
    permission, sources = policy.get("redrivePermission"), policy.get("sourceQueueArns")
    is_by_queue = permission == "byQueue"
    if permission not in ("allowAll", "denyAll", "byQueue") or set(policy) - {"redrivePermission", "sourceQueueArns"}:
        raise _invalid_policy(name, value, "redrivePermission must be allowAll, denyAll or byQueue.")
    if is_by_queue != (sources is not None):
        raise _invalid_policy(name, value, "sourceQueueArns belong to byQueue, and only to it.")
    if is_by_queue and not (
        isinstance(sources, list)
        and 1 <= len(sources) <= 10
        and all(isinstance(arn, str) and parse_arn(arn) for arn in sources)
    ):
        raise _invalid_policy(name, value, "sourceQueueArns must be 1 to 10 ARNs of queues.")
    return value


def _parse_object(name: str, value: str) -> dict[str, Any]:
    if len(value.encode("utf-8", "surrogatepass")) > POLICY_BYTES_MAX:
        raise _invalid_policy(name, value[:80], f"It is longer than {POLICY_BYTES_MAX} bytes.")
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise _invalid(name)
    return parsed


def _invalid_policy(name: str, value: str, reason: str) -> SqsError:
    return invalid_value(f"Value {value} for parameter {name} is invalid. Reason: {reason}")


_CHECKS: Final[Mapping[str, Callable[[str, str], str]]] = {
    "KmsMasterKeyId": _check_key_id,
    "SqsManagedSseEnabled": _check_boolean,
    "Policy": _check_policy,
    "RedrivePolicy": _check_redrive_policy,
    "RedriveAllowPolicy": _check_redrive_allow_policy,
}


# ------------------------------------------------------------------------- tags


def check_tags(tags: Mapping[str, str] | None, queue: str, present: Mapping[str, str]) -> dict[str, str]:
    """Return the tags of a queue with new ones. Raises `SqsError`."""
    if not tags:
        raise missing_parameter("Tags")
    for key, value in tags.items():
        if not 1 <= len(key) <= TAG_KEY_CHARS_MAX or len(value) > TAG_VALUE_CHARS_MAX:
            raise invalid_value(
                f"Tag keys must be between 1 and {TAG_KEY_CHARS_MAX} characters in length, and values at most "
                f"{TAG_VALUE_CHARS_MAX}."
            )
    merged = {**present, **tags}
    if len(merged) > TAGS_MAX:
        raise invalid_value(f"Too many tags added for queue {queue}.")
    return merged


# ------------------------------------------------------------------ permissions

_OWNER_ACTIONS: Final = frozenset(
    (
        "AddPermission",
        "CancelMessageMoveTask",
        "CreateQueue",
        "DeleteQueue",
        "ListMessageMoveTasks",
        "ListQueues",
        "ListQueueTags",
        "RemovePermission",
        "SetQueueAttributes",
        "StartMessageMoveTask",
        "TagQueue",
        "UntagQueue",
    )
)


def with_permission(policy_text: str, arn: str, label: str, accounts: list[str], actions: list[str]) -> str:
    """Return a policy with a statement of AddPermission. Raises `SqsError`."""
    if not actions:
        raise missing_parameter("Actions")
    if not accounts:
        raise invalid_value("Value [] for parameter PrincipalId is invalid. Reason: Unable to verify.")
    if len(actions) > PERMISSION_ACTIONS_MAX:
        raise SqsError("OverLimit", f"{len(actions)} Actions were found, maximum allowed is {PERMISSION_ACTIONS_MAX}.")
    for action in actions:
        if action in _OWNER_ACTIONS:
            raise invalid_value(
                f"Value SQS:{action} for parameter ActionName is invalid. "
                "Reason: Only the queue owner is allowed to invoke this action."
            )
    if not _LABEL.fullmatch(label):
        raise invalid_value(
            f"Value {label} for parameter Label is invalid. Reason: Must be 1 to 80 letters and digits."
        )
    policy = json.loads(policy_text) if policy_text else {}
    statements = _statements(policy)
    if any(statement.get("Sid") == label for statement in statements):
        raise invalid_value(f"Value {label} for parameter Label is invalid. Reason: Already exists.")
    principals = [f"arn:aws:iam::{account}:root" for account in accounts]
    allowed = [f"SQS:{action}" for action in actions]
    statement = {
        "Sid": label,
        "Effect": "Allow",
        "Principal": {"AWS": principals[0] if len(principals) == 1 else principals},
        "Action": allowed[0] if len(allowed) == 1 else allowed,
        "Resource": arn,
    }
    base = policy or {"Version": "2012-10-17", "Id": f"{arn}/SQSDefaultPolicy"}
    return _check_policy("Policy", json.dumps({**base, "Statement": [*statements, statement]}))


def without_permission(policy_text: str, label: str) -> str:
    """Return a policy without the statement of this label. Raises `SqsError` if there is none."""
    policy = json.loads(policy_text) if policy_text else {}
    statements = _statements(policy)
    kept = [statement for statement in statements if statement.get("Sid") != label]
    if len(kept) == len(statements):
        raise invalid_value(
            f"Value {label} for parameter Label is invalid. Reason: can't find label on existing policy."
        )
    return json.dumps({**policy, "Statement": kept}) if kept else ""


def _statements(policy: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = policy.get("Statement", [])
    return [statement for statement in (found if isinstance(found, list) else [found]) if isinstance(statement, dict)]
