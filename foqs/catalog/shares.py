"""The share of the catalog that the administrators of one namespace may use.

Always true: what they add leaves room for other namespaces, and a reserve in which the
administrators of the whole system can still create, pause and grant. A change that makes
the part of a namespace smaller is always allowed. Pure; knows nothing of callers.
"""

from __future__ import annotations

from typing import Final

from foqs.catalog.document import Document, stored_bytes
from foqs_contract.errors import LimitExceeded

GRANTS_MAX: Final = 1_000
PAUSED_MAX: Final = 1_000
"""A namespace with more of either would be better served by a limit, or by other principals."""
POLICIES_MAX: Final = 100
"""Each owner of a shard remembers groups of each topic with a policy."""
RESERVE_PERCENT: Final = 20
"""The part of the catalog that only administrators of the whole system use."""


def check_share(before: Document, after: Document, name: str, weight: int, bytes_max: int) -> None:
    """Check a change of one namespace by an administrator of this namespace only.

    A namespace may take `weight` times what is left for others, as with all that namespaces share. So one of weight 1
    that is alone gets half, and there is always some room for the next one.

    Args:
        bytes_max: the limit of the catalog.

    Raises:
        LimitExceeded: the namespace would have too many grants, paused topics or policies, or too large a part of the catalog.
    """
    old, new = before.namespaces[name], after.namespaces[name]
    _check_number(name, "grants", len(old.grants), len(new.grants), GRANTS_MAX, "revoke some")
    _check_number(name, "paused topics", len(old.paused), len(new.paused), PAUSED_MAX, "resume some")
    _check_number(name, "topics with a policy", len(old.policies), len(new.policies), POLICIES_MAX, "remove some")
    size = len(new.stored())
    if size <= len(old.stored()):
        return
    left = bytes_max * (100 - RESERVE_PERCENT) // 100 - stored_bytes(after)
    if size > weight * left:
        raise LimitExceeded(
            f"the namespace {name!r} would have {size} bytes of the catalog, and {max(0, left)} bytes would be left for "
            "all others; resume topics, revoke grants, remove policies or delete queues, or ask an administrator of the whole system, "
            "who may make this change, raise the weight of the namespace, or raise catalog.bytes_max"
        )


def _check_number(name: str, what: str, old: int, new: int, limit: int, remedy: str) -> None:
    if new > limit and new > old:
        raise LimitExceeded(
            f"the namespace {name!r} has {old} {what}, and at most {limit} are allowed; {remedy}, or ask an "
            "administrator of the whole system, who may have more"
        )
