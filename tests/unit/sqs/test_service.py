"""From a request to an action: signatures made by botocore, grants, accounts, and failures."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final
from urllib.parse import quote

import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from foqs.access.audit_trail import AuditTrail
from foqs.access.authenticator import AuthenticationLimits, Authenticator
from foqs.access.call_permissions import Principal
from foqs.access.keyring import Keyring
from foqs.options.sqs_options import SqsOptions
from foqs.rpc.audit import Audit
from foqs.sqs.action_request import ActionRequest
from foqs.sqs.action_table import Action, actions
from foqs.sqs.errors import SqsError, queue_does_not_exist
from foqs.sqs.http_messages import HttpHead, HttpReply
from foqs.sqs.identifiers import Account, QueueName
from foqs.sqs.json_protocol import CONTENT_TYPE
from foqs.sqs.query_protocol import FORM_TYPE
from foqs.sqs.queue_actions import target_of_queue
from foqs.sqs.queue_directory import QueueDirectory
from foqs.sqs.service import TURN_BYTES, Proof, SqsService, wire_protocol
from foqs_contract.call_table import CALLS, Permission
from foqs_contract.errors import Unavailable
from tests.support.access import EditableGrants, RecordingObserver

BODY: Final = b'{"QueueUrl": "mail"}'
OPERATIONS: Final = 23


ACCOUNT: Final = Account("000000000000", "eu-west-1")
OTHER_ACCOUNT: Final = Account("111111111111", "eu-west-1")
ACCOUNTS: Final = {"000000000000": "default", "111111111111": "other", "us-west-2:000000000000": "west"}


class Administration:
    """In place of the host's: no queue is looked for here."""

    def add_change_listener(self, listener: Callable[[Collection[str]], None]) -> None:
        """Nothing changes."""


class World:
    """A service whose actions record their requests."""

    def __init__(self, *permissions: int, is_authenticated: bool = True) -> None:
        self.requests: list[ActionRequest] = []
        self.observer = RecordingObserver()
        self.failure: BaseException | None = None
        self.give_back: Callable[[], None] | None = None
        self.result: Mapping[str, Any] = {"MessageId": "1"}
        keyring = Keyring(signing_secrets={"orders": ["old", "secret"]})
        grants = EditableGrants(*permissions)
        authenticator = Authenticator(keyring, [], grants, self.observer, AuthenticationLimits(failure_delay_s=0))
        self.trail = AuditTrail()
        audit = Audit(self.trail, lambda: 77)
        table = {
            name: Action(self.send, CALLS[call], target_of_queue)
            for name, call in (
                ("SendMessage", "enqueue"),
                ("PurgeQueue", "purgeTopic"),
                ("ListMessageMoveTasks", "listBulkJobs"),
            )
        }
        self.service = SqsService(
            table,
            QueueDirectory(Administration(), SqsOptions(accounts=ACCOUNTS), time.monotonic),  # type: ignore[arg-type]
            authenticator if is_authenticated else None,
            time.time,
            audit,
        )

    async def send(self, request: ActionRequest) -> Mapping[str, Any]:
        self.requests.append(request)
        if self.give_back is not None:
            request.give_backs.append(self.give_back)
        if self.failure is not None:
            raise self.failure
        return self.result

    def serve(self, call: HttpHead, body: bytes = BODY) -> HttpReply:
        """Return the reply, as the port does."""

        async def main() -> HttpReply:
            try:
                self.service.check_head(call)
                proof = self.service.prove(call, body)
            except SqsError as error:
                await self.service.delay_refusal(error)
                return wire_protocol(call).error("unknown", error)
            return await self.service.serve(call, body, proof)

        return asyncio.run(main())

    def refusal(self, call: HttpHead) -> str | None:
        """Return the error of a head; None if it depends on the body whether the request is refused."""
        try:
            self.service.check_head(call)
        except SqsError as error:
            return error.shape
        return None


def signed(
    secret: str = "secret", key: str = "orders", path: str = "/", region: str = "eu-west-1", **headers: str
) -> HttpHead:
    """Return a request that botocore has signed."""
    names = {
        "Content-Type": CONTENT_TYPE,
        "X-Amz-Target": "AmazonSQS.SendMessage",
        "x-amzn-query-mode": "true",
        "amz-sdk-invocation-id": "an-invocation-id",
        **headers,
    }
    request = AWSRequest("POST", f"http://q.example:7413{path}", names, BODY)
    SigV4Auth(Credentials(key, secret), "sqs", region).add_auth(request)
    lines = [("Host", "q.example:7413"), *((name, str(value)) for name, value in request.headers.items())]
    return HttpHead("POST", "http", path, lines, "10.0.0.1:5")


def shape(reply: HttpReply) -> str:
    return str(json.loads(reply.body)["__type"]).rpartition("#")[2]


@pytest.mark.parametrize(
    ("header", "trace"),
    [("Root=1-2-3;Sampled=1", b"Root=1-2-3;Sampled=1"), ("unknown", b""), ("Root=\udcff", b""), (None, b"")],
)
def test_the_trace_of_a_request_need_not_be_signed_and_a_wrong_one_is_left_out(
    header: str | None, trace: bytes
) -> None:
    world = World(Permission.ENQUEUE)
    call = signed()
    lines = [*call.headers, *([] if header is None else [("X-Amzn-Trace-Id", header)])]
    assert world.serve(HttpHead("POST", "http", "/", lines)).status == 200
    assert world.requests[0].trace == trace


def test_a_signed_request_runs_its_action() -> None:
    world = World(Permission.ENQUEUE)
    for secret in ("secret", "old"):
        reply = world.serve(signed(secret))
        assert (reply.status, json.loads(reply.body), reply.action) == (200, {"MessageId": "1"}, "SendMessage")
    request = world.requests[0]
    assert (request.sender, request.account, request.invocation_id) == ("orders", ACCOUNT, "an-invocation-id")
    assert request.base_url == "http://q.example:7413"
    assert request.principal == Principal("orders")


def test_a_long_reply_is_made_in_parts_between_which_others_run() -> None:
    world = World(is_authenticated=False)
    parts = 20
    world.result = {"Messages": [{"Body": "x" * TURN_BYTES} for _ in range(parts)]}

    async def main() -> None:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.ensure_future(count())
        replies = await asyncio.gather(*(world.service.serve(signed(), BODY, Proof(None, "r")) for _ in range(2)))
        counting.cancel()
        assert [json.loads(reply.body) for reply in replies] == [world.result] * 2
        assert turns > 2 * parts

    asyncio.run(main())


def test_a_wrong_signature_runs_nothing_and_is_counted() -> None:
    world = World(Permission.ENQUEUE)
    found = [shape(world.serve(call)) for call in (signed("wrong"), signed(key="nobody"))]
    assert found == ["InvalidSignatureException", "UnrecognizedClientException"]
    assert (world.requests, world.observer.failures) == ([], 2)


def test_what_cannot_be_valid_is_refused_before_the_body_is_read() -> None:
    world = World(Permission.ENQUEUE)
    assert world.refusal(signed()) is None
    assert world.refusal(signed("wrong")) is None, "only the body tells"
    assert world.refusal(signed(key="nobody")) == "UnrecognizedClientException"
    assert World(is_authenticated=False).refusal(signed(key="nobody")) is None


@pytest.mark.parametrize("name", ["Origin", "Sec-Fetch-Site"])
def test_without_authentication_web_pages_are_refused(name: str) -> None:
    call = signed(**{name: "null"})
    reply = World(is_authenticated=False).serve(call)
    assert (reply.status, shape(reply)) == (403, "AccessDeniedException")
    assert World(Permission.ENQUEUE).refusal(call) is None, "a page cannot sign"


@pytest.mark.parametrize(("method", "media_type"), [("GET", ""), ("GET", FORM_TYPE), ("HEAD", FORM_TYPE)])
def test_without_authentication_a_form_must_be_posted(method: str, media_type: str) -> None:
    """A browser sends such a GET for an image of a page, and names no origin."""
    target, headers = "/1/mail?Action=PurgeQueue", [("Content-Type", media_type)]
    call = HttpHead(method, "http", target, headers)
    reply = World(is_authenticated=False).serve(call)
    assert (reply.status, b"<Code>AccessDenied</Code>" in reply.body) == (403, True)
    posted = HttpHead("POST", "http", "/", [("Content-Type", FORM_TYPE)])
    assert World(is_authenticated=False).refusal(posted) is None


def test_an_action_needs_its_grant() -> None:
    world = World(Permission.CONSUME)
    reply = world.serve(signed())
    assert (reply.status, shape(reply)) == (403, "AccessDeniedException")
    assert world.requests == []


def test_the_path_names_account_and_queue() -> None:
    world = World(is_authenticated=False)
    for path in ("/", "/111111111111", "/111111111111/", "/111111111111/mail"):
        world.serve(signed(path=path))
    assert [request.account for request in world.requests] == [ACCOUNT, *[OTHER_ACCOUNT] * 3]
    assert world.requests[3].path_queue is not None
    assert world.requests[3].path_queue.account == OTHER_ACCOUNT
    assert shape(world.serve(signed(path="/222222222222/"))) == "QueueDoesNotExist"


@pytest.mark.parametrize(
    "moved", ["/111111111111/..", "/111111111111/x/../..", "/./111111111111//../", "/111111111111/../"]
)
def test_a_path_whose_dots_lead_to_the_signed_one_means_the_signed_one(moved: str) -> None:
    """The signature covers the path without dots. So the holder of a request could move it to another account."""
    world = World(Permission.ENQUEUE)
    as_signed = signed(path="/")
    reply = world.serve(HttpHead(as_signed.method, as_signed.scheme, moved, as_signed.headers))
    assert [(request.account, request.path_queue) for request in world.requests] == [(ACCOUNT, None)]
    assert reply.status == 200


def presigned(query: str, region: str = "eu-west-1") -> HttpHead:
    """Return a GET that botocore has presigned."""
    request = AWSRequest("GET", f"http://q.example:7413/?{query}", {}, b"")
    SigV4QueryAuth(Credentials("orders", "secret"), "sqs", region, expires=60).add_auth(request)
    _, _, target = request.url.partition(":7413")
    return HttpHead("GET", "http", target, [("Host", "q.example:7413")])


def test_a_plus_sign_of_a_presigned_url_has_one_meaning() -> None:
    """The signature takes + and %2B for the same. So the holder of a URL could turn a plus sign into a space."""
    world = World(Permission.ENQUEUE)
    call = presigned("Action=SendMessage&QueueUrl=mail&MessageBody=1%2B1")
    for target in (f"{call.path}?{call.query}", f"{call.path}?{call.query}".replace("1%2B1", "1+1")):
        moved = HttpHead("GET", "http", target, call.headers)
        assert world.serve(moved, b"").status == 200
    assert [request.parameters.members["MessageBody"] for request in world.requests] == ["1+1", "1+1"]


@pytest.mark.parametrize("path", ["/", "/000000000000/", "/000000000000/mail"])
def test_the_account_is_that_of_the_region_of_the_signature(path: str) -> None:
    world = World(is_authenticated=False)
    for region in ("eu-west-1", "us-west-2"):
        assert world.serve(signed(path=path, region=region)).status == 200
    west = Account("000000000000", "us-west-2")
    assert [request.account for request in world.requests] == [ACCOUNT, west]
    queues = [QueueName(account, "mail") if path.endswith("mail") else None for account in (ACCOUNT, west)]
    assert [request.path_queue for request in world.requests] == queues


def test_a_grant_is_for_the_namespace_of_one_region() -> None:
    world = World(Permission.ENQUEUE)
    form = f"Action=SendMessage&QueueUrl={quote('http://q.example:7413/000000000000/mail', safe='')}"
    for region, status in (("eu-west-1", 200), ("us-east-1", 200), ("us-west-2", 403)):
        assert world.serve(signed(region=region)).status == status
        assert world.serve(signed(region=region, path="/000000000000/")).status == status
        assert world.serve(presigned(form, region), b"").status == status


def test_the_region_of_an_account_with_a_key_of_its_own_is_noted() -> None:
    world, purge = World(is_authenticated=False), {"X-Amz-Target": "AmazonSQS.PurgeQueue"}
    for region in ("eu-west-1", "us-west-2"):
        world.serve(signed(region=region, **purge))
    assert [(entry.namespace, entry.target) for entry in world.trail.newest()] == [
        ("west", "account=us-west-2:000000000000 queue=mail"),
        ("default", "account=000000000000 queue=mail"),
    ]


def test_a_proxy_says_how_the_client_reached_it() -> None:
    world = World(is_authenticated=False)
    world.serve(signed(**{"X-Forwarded-Proto": "https", "X-Forwarded-Host": "sqs.example"}))
    world.serve(signed(**{"X-Forwarded-Proto": "gopher", "X-Forwarded-Host": "a b"}))
    assert [request.base_url for request in world.requests] == ["https://sqs.example", "http://q.example:7413"]


@pytest.mark.parametrize(
    ("error", "status", "found"),
    [
        (SqsError("OverLimit", "x"), 403, "OverLimit"),
        (Unavailable("x"), 503, "ServiceUnavailableException"),
        (KeyError("bug"), 500, "InternalFailure"),
    ],
)
def test_each_failure_is_an_error_of_sqs(error: Exception, status: int, found: str) -> None:
    world = World(is_authenticated=False)
    world.failure = error
    reply = world.serve(signed())
    assert (reply.status, shape(reply), reply.error) == (status, found, found)


def test_the_table_has_every_operation() -> None:
    class AnyActions:
        def __getattr__(self, name: str) -> Any:
            return name

    assert len(actions(AnyActions(), AnyActions(), AnyActions())) == OPERATIONS  # type: ignore[arg-type]


def test_changes_of_administrators_are_noted_and_no_other_action() -> None:
    world = World(Permission.ADMIN, Permission.ENQUEUE)
    purge = {"X-Amz-Target": "AmazonSQS.PurgeQueue"}
    world.serve(signed())
    world.serve(signed(**{"X-Amz-Target": "AmazonSQS.ListMessageMoveTasks"}))
    assert list(world.trail.newest()) == []
    world.serve(signed(**purge))
    for failure in (queue_does_not_exist(), Unavailable("no shard")):
        world.failure = failure
        world.serve(signed(**purge))
    unknown, missing, done = world.trail.newest()
    assert (done.principal, done.peer, done.call, done.namespace, done.target, done.outcome) == (
        "orders",
        "sqs 10.0.0.1:5",
        "sqs.PurgeQueue",
        "default",
        "account=000000000000 queue=mail",
        "OK",
    )
    assert (missing.outcome, unknown.outcome) == ("QueueDoesNotExist", "UNAVAILABLE")


def test_denied_change_is_noted_and_a_denied_message_is_not() -> None:
    world = World(Permission.CONSUME)
    world.serve(signed())
    reply = world.serve(signed(**{"X-Amz-Target": "AmazonSQS.PurgeQueue"}))
    assert (reply.status, world.requests) == (403, [])
    [denied] = world.trail.newest()
    assert (denied.principal, denied.namespace, denied.outcome) == ("orders", "default", "PERMISSION_DENIED")
    assert denied.target == "account=000000000000 queue=mail"


def test_change_of_an_unknown_account_is_noted_without_a_namespace() -> None:
    world = World(Permission.ADMIN)
    world.serve(signed(path="/222222222222/", **{"X-Amz-Target": "AmazonSQS.PurgeQueue"}))
    [missing] = world.trail.newest()
    assert (missing.namespace, missing.target) == (None, "account=222222222222 queue=mail")
    assert missing.outcome == "QueueDoesNotExist"


@pytest.mark.parametrize(
    "url",
    [
        "https://q.example/000000000000/scratch" + "/" * 400 + "000000000000/payroll",
        "https://q.example/000000000000/scratch" + " " * 400 + "/000000000000/payroll",
        "payroll",
    ],
)
def test_the_queue_that_was_concerned_is_noted_however_its_url_is_written(url: str) -> None:
    world = World(Permission.ADMIN)
    body = f"Action=PurgeQueue&QueueUrl={quote(url)}".encode()
    assert world.serve(signed_form(body), body).status == 200
    [entry] = world.trail.newest()
    assert entry.target == "account=000000000000 queue=payroll"


def test_the_queue_of_the_path_is_noted() -> None:
    world, body = World(Permission.ADMIN), b"Action=PurgeQueue&Version=2012-11-05"
    assert world.serve(signed_form(body, path="/000000000000/payroll"), body).status == 200
    [entry] = world.trail.newest()
    assert (entry.namespace, entry.target) == ("default", "account=000000000000 queue=payroll")


def signed_form(body: bytes, secret: str = "secret", path: str = "/") -> HttpHead:
    """Return a request of the Query protocol that botocore has signed."""
    names = {"Content-Type": f"{FORM_TYPE}; charset=utf-8"}
    request = AWSRequest("POST", f"http://q.example:7413{path}", names, body)
    SigV4Auth(Credentials("orders", secret), "sqs", "eu-west-1").add_auth(request)
    lines = [("Host", "q.example:7413"), *((name, str(value)) for name, value in request.headers.items())]
    return HttpHead("POST", "http", path, lines)


def test_a_signed_form_runs_its_action_and_gets_xml() -> None:
    world, body = World(Permission.ENQUEUE), b"Action=SendMessage&Version=2012-11-05&QueueUrl=mail&MessageBody=x"
    reply = world.serve(signed_form(body), body)
    assert (reply.status, reply.action, reply.headers["Content-Type"]) == (200, "SendMessage", "text/xml")
    assert b"<SendMessageResult><MessageId>1</MessageId></SendMessageResult>" in reply.body
    assert world.requests[0].parameters.members == {"QueueUrl": "mail", "MessageBody": "x"}
    for wrong, code in (
        ((signed_form(body, "wrong"), body), b"SignatureDoesNotMatch"),
        ((signed_form(body), body + b"y"), b"SignatureDoesNotMatch"),
    ):
        reply = world.serve(*wrong)
        assert (reply.status, b"<Code>" + code + b"</Code>" in reply.body) == (403, True)
    assert len(world.requests) == 1


@pytest.mark.parametrize("failure", [None, Unavailable("no shard"), KeyError("bug"), asyncio.CancelledError()])
def test_messages_of_a_request_are_given_back_if_it_fails_or_its_reply_is_not_sent(
    failure: BaseException | None,
) -> None:
    world = World(Permission.ENQUEUE)
    given_back: list[None] = []
    world.failure, world.give_back = failure, lambda: given_back.append(None)
    if isinstance(failure, asyncio.CancelledError):
        with pytest.raises(asyncio.CancelledError):
            world.serve(signed())
    else:
        reply = world.serve(signed())
        if failure is None:
            assert given_back == []
            assert reply.give_back is not None
            written: list[None] = []
            world.requests[0].before_write.append(lambda: written.append(None))
            assert written == []
            reply.before_write()
            assert written == [None]
            reply.give_back()
    assert given_back == [None]
    assert world.requests[0].give_backs == []
