"""The policies of topics as the contract has them. Knows nothing of calls."""

from __future__ import annotations

from typing import Final

from foqs.catalog.document import WEIGHTS_MAX, PolicyRecord
from foqs.core.groups.group_rules import Fairness
from foqs.core.groups.topic_turns import WEIGHT_MAX
from foqs.core.items import validation
from foqs_contract.errors import InvalidArgument, LimitExceeded
from foqs_contract.idl import ttypes

_NUMBERS: Final = {Fairness.ITEMS: ttypes.Fairness.ITEMS, Fairness.TIME: ttypes.Fairness.TIME}
_FAIRNESSES: Final = {int(number): fairness for fairness, number in _NUMBERS.items()}


def parse_policy(policy: ttypes.TopicPolicy) -> PolicyRecord:
    """Parse a policy. What one rule demands of the others is checked with the change.

    Raises:
        InvalidArgument, LimitExceeded: name the field.
    """
    fair = None
    if policy.fair is not None:
        fair = _FAIRNESSES.get(policy.fair)
        if fair is None:
            raise InvalidArgument(
                f"{policy.fair} is nothing that groups share; give 1 (items) or 2 (time)", field="policy.fair"
            )
    if policy.order is not None and policy.order != ttypes.DeliveryOrder.RELAXED:
        raise InvalidArgument(f"{policy.order} is no order; give 1 (relaxed), or leave it out", field="policy.order")
    raw = policy.weights or ()
    if len(raw) > WEIGHTS_MAX:
        raise LimitExceeded(
            f"this has {len(raw)} entries; at most {WEIGHTS_MAX} groups may have a weight of their own",
            field="policy.weights",
        )
    weights: dict[str, int] = {}
    for place, each in enumerate(raw):
        path = f"policy.weights[{place}]"
        group = validation.decode_name(each.group, f"{path}.group")
        if group in weights:
            raise InvalidArgument(f"the group {group!r} has a weight already; name each once", field=f"{path}.group")
        weights[group] = validation.check_number(each.weight, 1, WEIGHT_MAX, f"{path}.weight")
    return PolicyRecord(policy.group_leases_max, fair, weights, policy.order is not None)


def policy_struct(topic: str, policy: PolicyRecord) -> ttypes.TopicPolicy:
    """Return the policy of a topic."""
    weights = [ttypes.GroupWeight(group, weight) for group, weight in sorted(policy.weights.items())]
    order = ttypes.DeliveryOrder.RELAXED if policy.is_relaxed else None
    return ttypes.TopicPolicy(topic, policy.group_leases_max, fairness_number(policy.fair), weights or None, order)


def fairness_number(fair: Fairness | None) -> ttypes.Fairness | None:
    """Return the number of what groups share; None if they share nothing."""
    return None if fair is None else _NUMBERS[fair]
