"""From an HTTP request to an action, and from its result to an HTTP reply.

Always true: an action runs only after the signature and the grant were checked; every
failure becomes an error that SDKs know. Knows nothing of sockets, and of single actions:
`action_table` holds them.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple
from uuid import uuid4

from foqs.access.authenticator import Authenticator
from foqs.access.call_permissions import Principal, denial
from foqs.rpc.audit import Audit
from foqs.sqs.action_request import ActionRequest, ActionTarget
from foqs.sqs.action_table import Action
from foqs.sqs.errors import AUTHENTICATION_ERRORS, SqsError, from_foqs_error
from foqs.sqs.http_messages import HttpHead, HttpReply
from foqs.sqs.identifiers import ACCOUNT, REGION, parse_queue_url
from foqs.sqs.json_protocol import JsonProtocol
from foqs.sqs.message_attributes import x_ray_trace
from foqs.sqs.parameters import Parameters
from foqs.sqs.query_protocol import QueryProtocol, is_query_request
from foqs.sqs.queue_directory import QueueDirectory
from foqs.sqs.signature import HttpRequest, check_claims, parse_signature, resolve_path, verify
from foqs_contract.errors import FoqsError, UnknownOutcome

log = logging.getLogger(__name__)

_REGION_DEFAULT: Final = "us-east-1"
_AUTHORITY: Final = re.compile(r"[A-Za-z0-9._:\[\]-]{1,255}", re.ASCII)

TURN_BYTES: Final = 256 * 1024
"""A reply of this size is made at once; a longer one in parts."""


class Proof(NamedTuple):
    """The principal that signed a request, and the region. Without authentication there is no principal."""

    principal: Principal | None
    region: str


class SqsService:
    """Serves the HTTP requests of SQS clients.

    Args:
        authenticator: None: anybody may call, and signatures are not checked.
        now_s: seconds since 1970-01-01 UTC.
        audit: notes the changes of administrators.
    """

    def __init__(
        self,
        table: Mapping[str, Action],
        directory: QueueDirectory,
        authenticator: Authenticator | None,
        now_s: Callable[[], float],
        audit: Audit,
    ) -> None:
        self._actions = table
        self._directory = directory
        self._authenticator = authenticator
        self._now_s = now_s
        self._audit = audit
        self._long_reply = asyncio.Lock()

    def check_head(self, head: HttpHead) -> None:
        """Check what can be known without the body. Raises `SqsError`."""
        if self._authenticator is None:
            _refuse_browsers(head)
        else:
            check_claims(head.query, head.headers, self._authenticator.signing_secrets_of, self._now_s())

    def prove(self, head: HttpHead, body: bytes) -> Proof:
        """Verify the signature of a request, and return its principal. Raises `SqsError`."""
        authenticator = self._authenticator
        if authenticator is None:
            return Proof(None, _region_of(head))
        digest = hashlib.sha256(body).hexdigest()
        request = HttpRequest(head.method, head.path, head.query, head.headers, digest)
        signature = verify(request, authenticator.signing_secrets_of, self._now_s())
        return Proof(authenticator.principal(signature.access_key), signature.region)

    async def delay_refusal(self, error: SqsError) -> None:
        """Count a wrong signature, and let time pass, so that guessing takes long. Other errors are not delayed."""
        if self._authenticator is not None and error.shape in AUTHENTICATION_ERRORS:
            self._authenticator.observer.authentication_failed()
            await asyncio.sleep(self._authenticator.limits.failure_delay_s)

    async def serve(
        self,
        head: HttpHead,
        body: bytes,
        proof: Proof,
        need_peer: Callable[[], None] = lambda: None,
        reserve_reply: Callable[[int], None] = lambda byte_count: None,
    ) -> HttpReply:
        """Return the reply to a request that was proved. Never raises, unless the caller is cancelled.

        Args:
            need_peer, reserve_reply: see `ActionRequest`.
        """
        protocol, action_name = wire_protocol(head), "unknown"
        try:
            name, parameters = protocol.read(head, body)
            action_name = name if name in self._actions else "unknown"
            action = self._action(name)
            request = self._request(head, parameters, proof, need_peer, reserve_reply)
            request_id = str(uuid4())
            try:
                result = await self._run(action, action_name, request)
                reply_body = await self._join(protocol.encode(action_name, result, request_id))
            except BaseException:
                request.give_back()
                raise
        except SqsError as error:
            return protocol.error(action_name, error)
        except FoqsError as error:
            return protocol.error(action_name, from_foqs_error(error))
        except Exception:
            log.exception("the SQS action %s failed with an unexpected error", action_name)
            failure = SqsError("InternalFailure", "The host failed during the call; see the host's log.")
            return protocol.error(action_name, failure)
        reply = protocol.result(action_name, reply_body, request_id)
        if not request.give_backs:
            return reply
        return replace(reply, give_back=request.give_back, before_write=request.reply_is_written)

    async def _join(self, parts: Iterator[bytes]) -> bytes:
        """Return the body of a reply. Other requests have their turn between its parts, and one long body is made at a time."""
        made: list[bytes] = []
        left_bytes = TURN_BYTES
        for part in parts:
            made.append(part)
            left_bytes -= len(part)
            if left_bytes < 0:
                break
        async with self._long_reply if left_bytes < 0 else nullcontext():
            for part in parts:
                await asyncio.sleep(0)
                made.append(part)
        return b"".join(made)

    async def _run(self, action: Action, name: str, request: ActionRequest) -> Mapping[str, Any]:
        """Do an action, if its principal may. A change of an administrator is noted when it ends or is denied."""
        target = action.target_of(request)
        if not action.row.is_audited:
            check_grant = partial(self._authorize, action, target, request.principal)
            check_grant()
            return await action.handle(replace(request, check_grant=check_grant))
        outcome = UnknownOutcome.code
        try:
            self._authorize(action, target, request.principal)
            result = await action.handle(request)
            outcome = "OK"
            return result
        except SqsError as error:
            outcome = error.shape
            raise
        except FoqsError as error:
            outcome = error.code
            raise
        finally:
            self._note(name, target, request, outcome)

    def _note(self, name: str, target: ActionTarget, request: ActionRequest, outcome: str) -> None:
        account = self._directory.configured(target.account)
        namespace, text = self._directory.known_namespace_of(account), replace(target, account=account).text
        self._audit.note(f"sqs.{name}", request.principal, f"sqs {request.peer}", namespace, text, outcome)

    def _action(self, name: str) -> Action:
        action = self._actions.get(name)
        if action is None:
            raise SqsError("UnknownOperationException", f"The action {name} is not valid for this endpoint.")
        return action

    def _authorize(self, action: Action, target: ActionTarget, principal: Principal | None) -> None:
        """Check the grant of a principal. Raises `SqsError`, and PermissionDenied if it has none."""
        namespace = self._directory.known_namespace_of(target.account)
        if namespace is None:
            raise action.absent()
        if principal is None or self._authenticator is None:
            return
        refusal = denial(
            action.row.requirement, principal, self._authenticator.permissions_of(principal.name, namespace)
        )
        if refusal is not None:
            raise refusal

    def _request(
        self,
        head: HttpHead,
        parameters: Parameters,
        proof: Proof,
        need_peer: Callable[[], None],
        reserve_reply: Callable[[int], None],
    ) -> ActionRequest:
        default = self._directory.account_default(proof.region)
        path = resolve_path(head.path)
        segments = [segment for segment in path.split("/") if segment]
        path_queue = parse_queue_url(path, default) if len(segments) > 1 else None
        account = default if path_queue is None else path_queue.account
        if segments and ACCOUNT.fullmatch(segments[-1]):
            account, path_queue = replace(default, digits=segments[-1]), None
        return ActionRequest(
            parameters=parameters,
            account=account,
            path_queue=path_queue,
            base_url=_base_url(head),
            peer=head.peer,
            principal=proof.principal,
            need_peer=need_peer,
            reserve_reply=reserve_reply,
            invocation_id=head.header("amz-sdk-invocation-id"),
            trace=x_ray_trace((head.header("x-amzn-trace-id") or "").encode("utf-8", "surrogateescape")),
        )


def _refuse_browsers(head: HttpHead) -> None:
    """Refuse what a web page can make a browser send to a server whose requests need no signature. Raises `SqsError`.

    Any page that its user visits could otherwise change queues, by a form, or by a name of its own that it points at
    this machine. A browser adds one of the headers to each POST of a page, but to a GET only sometimes.
    """
    if head.header("origin") is not None or head.header("sec-fetch-site") is not None:
        raise SqsError(
            "AccessDeniedException",
            "This host does not authenticate, so its SQS server refuses requests with the header Origin or "
            "Sec-Fetch-Site, which browsers send. Call it from a program, or set auth.enabled.",
        )
    if head.method != "POST" and is_query_request(head):
        raise SqsError(
            "AccessDeniedException",
            "This host does not authenticate, so its SQS server accepts the Query protocol by POST only. "
            "Send a POST, or set auth.enabled.",
        )


def wire_protocol(head: HttpHead) -> JsonProtocol | QueryProtocol:
    """Return the protocol of a request."""
    if is_query_request(head):
        return QueryProtocol()
    return JsonProtocol(is_query_mode=(head.header("x-amzn-query-mode") or "").lower() == "true")


def _region_of(head: HttpHead) -> str:
    """Return the region of a request whose signature is not checked."""
    authorization, date = head.header("authorization"), head.header("x-amz-date")
    claims = {"authorization": [authorization or ""], "x-amz-date": [date or ""]} if authorization else {}
    try:
        region = parse_signature(head.query, claims).region
    except SqsError:
        return _REGION_DEFAULT
    return region if REGION.fullmatch(region) else _REGION_DEFAULT


def _base_url(head: HttpHead) -> str:
    """Return the scheme, host and port by which the client reached this host, also through a proxy that names them."""
    forwarded = (head.header("x-forwarded-proto") or "").partition(",")[0].strip()
    scheme = forwarded if forwarded in ("http", "https") else head.scheme
    for name in ("x-forwarded-host", "host"):
        authority = (head.header(name) or "").partition(",")[0].strip()
        if _AUTHORITY.fullmatch(authority):
            return f"{scheme}://{authority}"
    return f"{scheme}://localhost"
