"""The calls about their own connection: its principal, and its dequeues."""

from __future__ import annotations

from foqs.queue.port import PendingCall
from foqs.rpc.auth_session import authenticate_reply
from foqs.rpc.call import Call, unchanged
from foqs.rpc.rpc_call import RpcCall
from foqs_contract.errors import InvalidArgument
from foqs_contract.idl import ttypes


def authenticate(call: Call) -> PendingCall | None:
    """Serve `authenticate`. A host without authentication replies without a principal."""
    session = call.connection.session if isinstance(call, RpcCall) else None
    if session is None:
        call.reply(authenticate_reply, None)
        return None
    request: ttypes.AuthenticateRequest = call.request
    return session.authenticate(request.token, call)


def abandon_dequeues(call: Call) -> None:
    """Serve `abandonDequeues`; see `Handler`.

    A call inside the host has no connection, so there are no dequeues to end.
    """
    request: ttypes.AbandonDequeuesRequest = call.request
    sequence_ids = request.sequence_ids
    if sequence_ids is None:
        raise InvalidArgument("this is missing; name the dequeues to end", field="sequence_ids")
    if isinstance(call, RpcCall):
        call.connection.abandon_dequeues(frozenset(sequence_ids))
    call.reply(unchanged, ttypes.DoneReply())
