"""One request of an action, after its signature was checked.

Knows nothing of HTTP.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from foqs.access.audit_trail import target_value
from foqs.access.call_permissions import Principal
from foqs.sqs.identifiers import Account, QueueName
from foqs.sqs.parameters import Parameters


@dataclass(slots=True, frozen=True)
class ActionTarget:
    """The account, queue or task that an action concerns, as the host understood the request. The grant is checked for it.

    Attributes:
        queue: the name of the queue; None: the account as a whole.
        destination: the queue to which a message move task moves messages, if the request names one.
        task: the id of a message move task.
    """

    account: Account
    queue: str | None = None
    destination: str | None = None
    task: str | None = None

    @property
    def text(self) -> str:
        """The target as the audit shows it."""
        parts = {"account": self.account.text, "queue": self.queue, "destination": self.destination, "task": self.task}
        return " ".join(f"{name}={target_value(value)}" for name, value in parts.items() if value is not None)


@dataclass(slots=True, frozen=True)
class ActionRequest:
    """One request of an SQS client, checked and parsed, as its action gets it.

    Attributes:
        account: the account of requests that name no queue, in the region of the signature.
        path_queue: the queue in the path of the URL, if there is one.
        base_url: the scheme, host and port by which the client reached this host, for queue URLs.
        peer: the address that the request came from.
        principal: None if the host does not authenticate.
        invocation_id: the same for all attempts of one call of an SDK; None if the client sends none.
        trace: the header `X-Amzn-Trace-Id`, if it is a trace of X-Ray.
        give_backs: each releases items that were leased for the request.
        before_write: each is called when the reply of leased items will be written, so that `give_back` is not called any more.
        check_grant: checks the grant of the principal again. Raises PermissionDenied.
        need_peer: cancels the request if the peer closes its side of the connection. Other requests go on, and are
            answered.
        reserve_reply: counts payload bytes until their reply is written. Raises `SqsError` if there is no room.
    """

    parameters: Parameters
    account: Account
    path_queue: QueueName | None
    base_url: str
    peer: str = "unknown"
    principal: Principal | None = None
    invocation_id: str | None = None
    trace: bytes = b""
    give_backs: list[Callable[[], None]] = field(default_factory=list)
    before_write: list[Callable[[], None]] = field(default_factory=list)
    check_grant: Callable[[], None] = lambda: None
    need_peer: Callable[[], None] = lambda: None
    reserve_reply: Callable[[int], None] = lambda byte_count: None

    def give_back(self) -> None:
        """Release what was leased, because the reply does not reach the client."""
        while self.give_backs:
            self.give_backs.pop()()

    def reply_is_written(self) -> None:
        """Do what waits for the moment from which on nothing is given back: the reply is written now, or as much as the client takes."""
        for call in self.before_write:
            call()

    @property
    def sender(self) -> str:
        """The SenderId of messages."""
        return "anonymous" if self.principal is None else self.principal.name

    def queue_url(self, queue: QueueName) -> str:
        return f"{self.base_url}/{queue.account.digits}/{queue.name}"
