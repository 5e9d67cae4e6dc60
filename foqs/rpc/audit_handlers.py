"""The call that lists the changes of administrators at this host."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from foqs.access.audit_trail import ENTRIES_MAX, AuditEntry, AuditTrail
from foqs.core.items import validation
from foqs.rpc.methods import MethodHandler, task_handler
from foqs_contract.idl import ttypes

LIMIT_DEFAULT: Final = 100


def audit_handlers(trail: AuditTrail, host_name: str) -> Mapping[str, MethodHandler]:
    """Return the handlers by method name. `host_name` names this host in the entries."""

    async def list_audit(request: Any, deadline: float) -> Any:
        limit = audit_limit(request)
        wanted = (entry for entry in trail.newest() if _is_wanted(entry, request))
        return ttypes.ListAuditReply([_entry_struct(entry, host_name) for entry in islice(wanted, limit)])

    return {"listAudit": task_handler(list_audit)}


def audit_limit(request: Any) -> int:
    """Return how many entries a request wants. Raises `InvalidArgument`."""
    if request.limit is None:
        return LIMIT_DEFAULT
    return validation.check_number(request.limit, 1, ENTRIES_MAX, "limit")


def _is_wanted(entry: AuditEntry, request: Any) -> bool:
    return request.only_namespace is None or entry.namespace == request.only_namespace.decode(errors="replace")


def _entry_struct(entry: AuditEntry, host_name: str) -> Any:
    return ttypes.AuditEntry(
        at_ms=entry.at_ms,
        principal=entry.principal,
        peer=entry.peer,
        call=entry.call,
        namespace_name=entry.namespace,
        target=entry.target,
        outcome=entry.outcome,
        host=host_name,
    )
