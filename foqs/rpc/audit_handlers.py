"""The call that lists the changes of administrators at this host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from foqs.access.audit_trail import ENTRIES_MAX, AuditRecord, AuditTrail, choose_newest, share_of
from foqs.core.items import validation
from foqs.rpc.call import Call, Handler
from foqs.rpc.methods import task_handler
from foqs_contract.idl import ttypes

LIMIT_DEFAULT: Final = 100


def audit_handlers(trail: AuditTrail, host_name: str) -> Mapping[str, Handler]:
    """Return the handlers by method name. `host_name` names this host in the entries."""

    async def list_audit(call: Call) -> ttypes.ListAuditReply:
        request: ttypes.ListAuditRequest = call.request
        limit = audit_limit(request)
        wanted = [_entry_struct(entry, host_name) for entry in trail.newest() if _is_wanted(entry, request)]
        return ttypes.ListAuditReply(newest_entries(wanted, limit))

    return {"listAudit": task_handler(list_audit)}


def audit_limit(request: ttypes.ListAuditRequest) -> int:
    """Return how many entries a request wants. Raises `InvalidArgument`."""
    if request.limit is None:
        return LIMIT_DEFAULT
    return validation.check_number(request.limit, 1, ENTRIES_MAX, "limit")


def newest_entries(entries: Sequence[ttypes.AuditEntry], limit: int) -> Sequence[ttypes.AuditEntry]:
    """Return the structs that a reply has room for, of a list whose newest is first."""
    return choose_newest(entries, limit, lambda entry: share_of(entry.principal, entry.outcome or ""))


def _is_wanted(entry: AuditRecord, request: ttypes.ListAuditRequest) -> bool:
    return request.only_namespace is None or entry.namespace == request.only_namespace.decode(errors="replace")


def _entry_struct(entry: AuditRecord, host_name: str) -> ttypes.AuditEntry:
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
