"""The actions about messages: send, receive, delete, change visibility; one by one and in batches.

Always true: a reply follows the commit; an entry of a batch fails alone; a receipt that
another delivery has superseded changes nothing; messages of a receive that fails, or
whose reply cannot be sent, are released.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from foqs.catalog.document import QueueEntry
from foqs.core.limits.waiting_calls import WaitingCalls
from foqs.rpc.in_host_calls import InHostCalls, delivery_structs, raw_id
from foqs.sqs import envelope, fifo, origin, queue_attributes
from foqs.sqs.action_request import ActionRequest
from foqs.sqs.dead_letters import DeadLetters
from foqs.sqs.errors import SHAPES, SqsError, from_foqs_error, invalid_parameter
from foqs.sqs.identifiers import QueueName, Receipt, message_id, parse_receipt_handle, receipt_handle
from foqs.sqs.message_attributes import TRACE_HEADER, md5_of, md5_of_attributes, select_attributes, x_ray_trace
from foqs.sqs.outgoing_messages import OutgoingMessage, message_size, parse_message, too_long_for_namespace
from foqs.sqs.parameters import RECEIVE_MAX, WAIT_S_MAX, Parameters, check_attribute_names, check_text
from foqs.sqs.queue_actions import requested_queue
from foqs.sqs.queue_directory import QueueDirectory
from foqs.sqs.receive_attempts import AttemptName, ReceiveAttempt, ReceiveAttempts
from foqs.sqs.redrive_policy import redrive_in_force
from foqs_contract.errors import (
    FoqsError,
    LimitExceeded,
    NotFound,
    StaleLease,
    Unavailable,
    UnknownOutcome,
    error_from_struct,
)
from foqs_contract.idl import ttypes
from foqs_contract.plurals import counted

_SYSTEM_NAMES: Final = frozenset(
    (
        "ApproximateFirstReceiveTimestamp",
        "ApproximateReceiveCount",
        "DeadLetterQueueSourceArn",
        "MessageDeduplicationId",
        "MessageGroupId",
        "SenderId",
        "SentTimestamp",
        "SequenceNumber",
        TRACE_HEADER,
    )
)
log = logging.getLogger(__name__)

_INVISIBLE_MS: Final = 1_000
"""The lease of a message that is received with VisibilityTimeout 0, until it is made visible."""
_LARGE_BYTES: Final = 64 * 1024
"""A larger message takes some milliseconds to be read and hashed."""
_DEAD_LETTER_MOVES_MAX: Final = 10
"""The maximum number of times that a receive moves dead letters before it returns without a message."""
_OUTAGE_LOG_S: Final = 10.0
"""The least time between two log lines about receives that may have missed messages."""
_NO_ID: Final = UnknownOutcome(
    "the host's reply has no id for this message; it may have been sent, so check before you repeat it"
)


@dataclass(slots=True, frozen=True)
class _Settlement:
    """The settlement of one receipt: the call, and its entry in the request."""

    method: str
    receipt: Receipt
    entry: ttypes.Lease | ttypes.Extension


_Sent: TypeAlias = Mapping[str, str]
"""What the reply to a send says of the item of a message."""
_Parse: TypeAlias = Callable[[Parameters, QueueName], _Settlement]
_ToFailure: TypeAlias = Callable[[Parameters, FoqsError], SqsError | None]
"""Returns the client's error for an error of the host; None: report success."""


class MessageActions:
    """Serves the actions about messages.

    Args:
        timeout_s: the time limit of each internal call; a receive adds its wait.
        now_s: seconds since 1970-01-01 UTC.
        waiting: the places of receives that wait. Each of them occupies a connection.
        time_s: a steady clock, in seconds.
    """

    def __init__(
        self,
        directory: QueueDirectory,
        calls: InHostCalls,
        timeout_s: float,
        now_s: Callable[[], float],
        waiting: WaitingCalls,
        time_s: Callable[[], float],
    ) -> None:
        self._directory = directory
        self._calls = calls
        self._timeout_s = timeout_s
        self._now_s = now_s
        self._waiting = waiting
        self._next_outage_log_s = 0.0
        self._dead_letters = DeadLetters(calls, timeout_s, now_s)
        self._attempts = ReceiveAttempts(time_s)

    # ------------------------------------------------------------------------ send

    async def send_message(self, request: ActionRequest) -> Mapping[str, Any]:
        queue = requested_queue(request)
        entry = await self._directory.find(queue)
        message = parse_message(request.parameters, queue, entry, request, 0)
        (result,) = await self._enqueue(request, queue, [message])
        if isinstance(result, SqsError):
            raise result
        return {**result, **message.md5}

    async def send_message_batch(self, request: ActionRequest) -> Mapping[str, Any]:
        queue = requested_queue(request)
        entry = await self._directory.find(queue)
        entries = request.parameters.entries("SendMessageBatchRequestEntry")
        if queue.is_fifo:
            for _, parameters in entries:
                fifo.check_identifiers(parameters, entry)
        outcomes: dict[str, OutgoingMessage | SqsError] = {}
        for place, (entry_id, parameters) in enumerate(entries):
            outcomes[entry_id] = self._parse_entry(request, queue, entry, parameters, place)
        _check_batch_size([parameters for _, parameters in entries])
        messages = {entry_id: found for entry_id, found in outcomes.items() if isinstance(found, OutgoingMessage)}
        results = await self._enqueue(request, queue, list(messages.values())) if messages else []
        sent = dict(zip(messages, results, strict=True))
        replies: list[tuple[str, Mapping[str, Any] | SqsError]] = []
        for entry_id, found in outcomes.items():
            result = sent.get(entry_id, found)
            if isinstance(result, SqsError):
                replies.append((entry_id, result))
            elif isinstance(found, OutgoingMessage) and isinstance(result, Mapping):
                replies.append((entry_id, {**result, **found.md5}))
        return _batch_reply(replies)

    def _parse_entry(
        self, request: ActionRequest, queue: QueueName, entry: QueueEntry, parameters: Parameters, place: int
    ) -> OutgoingMessage | SqsError:
        try:
            return parse_message(parameters, queue, entry, request, place)
        except SqsError as error:
            return error

    async def _enqueue(
        self, request: ActionRequest, queue: QueueName, messages: Sequence[OutgoingMessage]
    ) -> list[_Sent | SqsError]:
        """Enqueue messages, and return for each what the reply says of its item, or the error."""
        self._directory.check_order(queue)
        enqueue = ttypes.EnqueueRequest(
            namespace_name=self._directory.namespace_of(queue.account).encode(),
            items=[message.item for message in messages],
        )
        reply = await self._calls.call("enqueue", enqueue, self._timeout_s, request.principal)
        results = [_sent(result, is_fifo=queue.is_fifo) for result in (reply.results or ())[: len(messages)]]
        sent = [message for message, result in zip(messages, results, strict=False) if not isinstance(result, SqsError)]
        if any(message.item.group is not None for message in sent):
            self._directory.let_groups_take_turns(queue)
        missing: list[_Sent | SqsError] = [from_foqs_error(_NO_ID)] * (len(messages) - len(results))
        return results + missing

    # --------------------------------------------------------------------- receive

    async def receive_message(self, request: ActionRequest) -> Mapping[str, Any]:
        request.need_peer()  # messages for a client that has left would be invisible for a while
        parameters = request.parameters
        queue = requested_queue(request)
        entry = await self._directory.find(queue)
        count = parameters.integer_in(
            "MaxNumberOfMessages", 1, RECEIVE_MAX, f"Must be between 1 and {RECEIVE_MAX}, if provided."
        )
        wait_s = parameters.integer_in(
            "WaitTimeSeconds", 0, WAIT_S_MAX, f"Must be >= 0 and <= {WAIT_S_MAX}, if provided."
        )
        visibility_s = parameters.visibility_timeout()
        system_names = [
            *(parameters.texts("AttributeNames") or ()),
            *(parameters.texts("MessageSystemAttributeNames") or ()),
        ]
        check_attribute_names(system_names, _SYSTEM_NAMES)
        attribute_names = parameters.texts("MessageAttributeNames") or ()
        if wait_s is None:
            wait_s = queue_attributes.number(entry.attributes, "ReceiveMessageWaitTimeSeconds")
        if visibility_s is None:
            visibility_s = queue_attributes.number(entry.attributes, "VisibilityTimeout")
        self._directory.check_order(queue)
        attempt = self._attempt(request, queue, entry)
        repeated = None if attempt is None else await self._repeat(request, queue, attempt, visibility_s)
        deliveries: Sequence[Any]
        if repeated is None:
            with self._place(request, queue, wait_s):
                deliveries = await self._receive(request, queue, entry, count or 1, wait_s, visibility_s)
            received_s = self._now_s()
        else:
            deliveries, received_s = repeated.deliveries, repeated.received_s
        request.reserve_reply(sum(len(delivery.payload or b"") for delivery in deliveries))
        if visibility_s == 0 and deliveries:
            await self._make_visible(request, queue, deliveries)
        elif attempt is not None and repeated is None:
            leases = [(raw_id(delivery.id).decode(), delivery.token) for delivery in deliveries]
            # Before that the messages may be given back, also after the client has repeated the receive.
            request.before_write.append(partial(self._attempts.remember, attempt, deliveries, leases, received_s))
        messages = []
        for delivery in deliveries:
            messages.append(self._received(request, queue, delivery, received_s, system_names, attribute_names))
            if len(delivery.payload or b"") > _LARGE_BYTES:
                await asyncio.sleep(0)  # other requests have their turn
        return {"Messages": messages} if messages else {}

    def _attempt(self, request: ActionRequest, queue: QueueName, entry: QueueEntry) -> AttemptName | None:
        """Return the name of the attempt that a receive makes; None if it names none. Raises `SqsError`."""
        attempt_id = request.parameters.text("ReceiveRequestAttemptId")
        if attempt_id is None or not queue.is_fifo:
            return None
        check_text(attempt_id, "ReceiveRequestAttemptId", fifo.IDENTIFIER_CHARS_MAX)
        principal = None if request.principal is None else request.principal.name
        namespace = self._directory.namespace_of(queue.account)
        return AttemptName(namespace, queue.name, entry.created_at_s, principal, attempt_id)

    async def _repeat(
        self, request: ActionRequest, queue: QueueName, name: AttemptName, visibility_s: int
    ) -> ReceiveAttempt | None:
        """Return what the attempt got before and is still in flight, with the visibility timeout begun again.

        None if it has to receive other messages. The messages stay invisible if the reply is not sent, as after a lost reply: another one may have been received.

        Raises:
            SqsError: it is not known now whether they are still in flight.
        """
        attempt = self._attempts.find(name)
        if attempt is None:
            return None
        if visibility_s:
            extensions = [
                ttypes.Extension(id=raw_id(each.id), token=each.token, lease_ms=visibility_s * 1_000)
                for each in attempt.deliveries
            ]
            errors = await self._settle_entries(request, queue, "extendLease", extensions)
            for error in errors:
                if error is not None and not isinstance(error, StaleLease | NotFound):
                    raise from_foqs_error(error)
            # Those whose lease is extended belong to this attempt: without them their groups would wait for nobody.
            return self._attempts.keep_only(
                name, attempt, [place for place, error in enumerate(errors) if error is None]
            )
        self._attempts.forget(name)
        return None

    @contextmanager
    def _place(self, request: ActionRequest, queue: QueueName, wait_s: int) -> Iterator[None]:
        """Take a place for a receive, if it waits. Raises `SqsError` if its principal or namespace has its share."""
        if not wait_s:
            yield
            return
        # Tuples, because a principal may have the name of a namespace.
        holders = [("namespace", self._directory.namespace_of(queue.account))]
        if request.principal is not None:
            holders.append(("principal", request.principal.name))
        place = self._waiting.reserve(holders, 0)
        if place is None:
            raise SqsError(
                "RequestThrottled",
                "Too many receives of this principal or account wait at this host already; use fewer, or more hosts.",
            )
        try:
            yield
        finally:
            self._waiting.release_reservation(place)

    async def _receive(
        self, request: ActionRequest, queue: QueueName, entry: QueueEntry, count: int, wait_s: int, visibility_s: int
    ) -> list[Any]:
        """Dequeue, and return the deliveries. A message that was received too often before is moved to the dead letter queue instead.

        It waits only while the queue is the same one and has the same attributes, and while the grant lasts.

        Raises:
            SqsError: the queue was deleted, or lost its order. It may have delivered several messages of a group.
            PermissionDenied: the grant was taken away.
        """
        namespace = self._directory.namespace_of(queue.account)
        loop_time = asyncio.get_running_loop().time
        wait_until_s = loop_time() + wait_s
        for _ in range(_DEAD_LETTER_MOVES_MAX):
            left_ms = max(0, int((wait_until_s - loop_time()) * 1_000))
            found = await self._dequeue_while_current(request, queue, entry, count, left_ms, visibility_s)
            if found is None:
                request.check_grant()
                await self._directory.find(queue)
            self._directory.check_order(queue)
            if found is None:
                return []
            redrive = redrive_in_force(namespace, queue.name, self._directory.queues(namespace))
            if redrive is None:
                return found
            dead_letters = [delivery for delivery in found if delivery.attempt > redrive.receives_max]
            if dead_letters:
                await self._dead_letters.move(redrive, dead_letters, request.principal)
            if len(dead_letters) < len(found) or not found:
                return [delivery for delivery in found if delivery.attempt <= redrive.receives_max]
        return []

    async def _dequeue_while_current(
        self, request: ActionRequest, queue: QueueName, entry: QueueEntry, count: int, wait_ms: int, visibility_s: int
    ) -> list[Any] | None:
        """Dequeue, and return the deliveries; None if the queue or the grant has changed since the receive began, or changes now."""
        if not self._is_current(request, queue, entry):
            return None  # it changed while dead letters were moved
        if not wait_ms:
            return await self._dequeue(request, queue, count, 0, visibility_s)
        loop = asyncio.get_running_loop()

        def on_change() -> None:
            if not (wait.expired() or self._is_current(request, queue, entry)):
                wait.reschedule(loop.time())

        try:
            async with asyncio.timeout(None) as wait:
                with self._directory.watching(self._directory.namespace_of(queue.account), on_change):
                    return await self._dequeue(request, queue, count, wait_ms, visibility_s)
        except TimeoutError:
            return None

    def _is_current(self, request: ActionRequest, queue: QueueName, entry: QueueEntry) -> bool:
        try:
            request.check_grant()
            return self._directory.is_current(queue, entry)
        except FoqsError:
            return False

    async def _dequeue(
        self, request: ActionRequest, queue: QueueName, count: int, wait_ms: int, visibility_s: int
    ) -> list[Any]:
        timeout_s = self._timeout_s + wait_ms / 1_000
        dequeue = ttypes.DequeueRequest(
            namespace_name=self._directory.namespace_of(queue.account).encode(),
            topics=[ttypes.TopicCount(topic=queue.name.encode(), count=count)],
            wait_ms=wait_ms,
            timeout_ms=int(timeout_s * 1_000),
            lease_ms=visibility_s * 1_000 or _INVISIBLE_MS,
            run_max=count if queue.is_fifo else None,
        )
        try:
            reply = await self._calls.call("dequeue", dequeue, timeout_s, request.principal, request.give_backs)
        except Unavailable as error:
            self._log_outage(queue, error.message)
            raise
        if reply.unavailable_shards:
            shards = counted(reply.unavailable_shards, "shard")
            self._log_outage(queue, f"{shards} may hold messages and cannot deliver them")
        return delivery_structs(reply)

    def _log_outage(self, queue: QueueName, reason: str) -> None:
        """Log why a receive may have missed messages, at most every `_OUTAGE_LOG_S`: receives wait in many connections."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._next_outage_log_s:
            self._next_outage_log_s = now_s + _OUTAGE_LOG_S
            account = self._directory.configured(queue.account).text
            log.warning("receives from the queue %s of account %s may miss messages: %s", queue.name, account, reason)

    async def _make_visible(self, request: ActionRequest, queue: QueueName, deliveries: Sequence[Any]) -> None:
        """Make messages visible again at once. Those for which this fails become visible when their lease ends."""
        ends = [ttypes.Extension(id=raw_id(found.id), token=found.token, lease_ms=0) for found in deliveries]
        await self._settle_entries(request, queue, "extendLease", ends)

    def _received(
        self,
        request: ActionRequest,
        queue: QueueName,
        delivery: Any,
        received_s: float,
        system_names: Sequence[str],
        attribute_names: Sequence[str],
    ) -> Mapping[str, Any]:
        item_id = raw_id(delivery.id).decode()
        message = envelope.decode(delivery.payload or b"")
        dead_letter = origin.decode(delivery.metadata, queue.name)
        reply: dict[str, Any] = {
            "MessageId": message_id(item_id) if dead_letter is None else dead_letter.message_id,
            "ReceiptHandle": receipt_handle(queue.name, item_id, delivery.token),
            "MD5OfBody": md5_of(message.body.encode()),
            "Body": message.body,
        }
        system = _system_attributes(message, delivery, int(received_s * 1_000))
        if queue.is_fifo:
            system["SequenceNumber"] = fifo.sequence_number(item_id)
        if dead_letter is not None:
            source = QueueName(queue.account, dead_letter.source)
            system["DeadLetterQueueSourceArn"] = source.arn
            system["ApproximateReceiveCount"] = str(dead_letter.receives + delivery.attempt)
            system["ApproximateFirstReceiveTimestamp"] = str(dead_letter.first_received_ms)
        chosen = system if "All" in system_names else {name: system[name] for name in system_names if name in system}
        if chosen:
            reply["Attributes"] = chosen
        attributes = select_attributes(message.attributes, attribute_names)
        if attributes:
            reply["MD5OfMessageAttributes"] = md5_of_attributes(attributes)
            reply["MessageAttributes"] = {attribute.name: attribute.to_json() for attribute in attributes}
        return reply

    # ---------------------------------------------------- delete, change visibility

    async def delete_message(self, request: ActionRequest) -> Mapping[str, Any]:
        return await self._settle_one(request, _deletion, _deletion_error)

    async def delete_message_batch(self, request: ActionRequest) -> Mapping[str, Any]:
        return await self._settle_batch(request, "Delete", _deletion, _deletion_error)

    async def change_message_visibility(self, request: ActionRequest) -> Mapping[str, Any]:
        return await self._settle_one(request, _visibility_change, _visibility_error)

    async def change_message_visibility_batch(self, request: ActionRequest) -> Mapping[str, Any]:
        return await self._settle_batch(request, "ChangeMessageVisibility", _visibility_change, _visibility_error)

    async def _settle_one(self, request: ActionRequest, parse: _Parse, to_failure: _ToFailure) -> Mapping[str, Any]:
        queue = requested_queue(request)
        await self._directory.find(queue)
        (error,) = await self._settle(request, queue, [parse(request.parameters, queue)])
        failure = None if error is None else to_failure(request.parameters, error)
        if failure is not None:
            raise failure
        return {}

    async def _settle_batch(
        self, request: ActionRequest, kind: str, parse: _Parse, to_failure: _ToFailure
    ) -> Mapping[str, Any]:
        queue = requested_queue(request)
        await self._directory.find(queue)
        entries = request.parameters.entries(f"{kind}{'Message' if kind == 'Delete' else ''}BatchRequestEntry")
        failures: dict[str, SqsError] = {}
        settlements: dict[str, _Settlement] = {}
        for entry_id, parameters in entries:
            try:
                settlements[entry_id] = parse(parameters, queue)
            except SqsError as refusal:
                failures[entry_id] = refusal
        errors = await self._settle(request, queue, list(settlements.values()))
        members = dict(entries)
        for entry_id, error in zip(settlements, errors, strict=True):
            failure = None if error is None else to_failure(members[entry_id], error)
            if failure is not None:
                failures[entry_id] = failure
        return _batch_reply([(entry_id, failures.get(entry_id) or {}) for entry_id, _ in entries])

    async def _settle(
        self, request: ActionRequest, queue: QueueName, settlements: Sequence[_Settlement]
    ) -> list[FoqsError | None]:
        """Make these settlements, all of one method, and return the error of each. An item may occur in several of them."""
        for settlement in settlements:
            self._attempts.on_settled((settlement.receipt.item_id, settlement.receipt.token))
        errors: list[FoqsError | None] = [None] * len(settlements)
        places = list(range(len(settlements)))
        while places:
            now: dict[str, int] = {}
            for place in places:
                now.setdefault(settlements[place].receipt.item_id, place)
            places = [place for place in places if place not in now.values()]
            entries = [settlements[place].entry for place in now.values()]
            outcomes = await self._settle_entries(request, queue, settlements[0].method, entries)
            for place, outcome in zip(now.values(), outcomes, strict=True):
                errors[place] = outcome
        return errors

    async def _settle_entries(
        self, request: ActionRequest, queue: QueueName, method: str, entries: Sequence[ttypes.Lease | ttypes.Extension]
    ) -> list[FoqsError | None]:
        make_request, field = _REQUESTS[method]
        fields = {"namespace_name": self._directory.namespace_of(queue.account).encode()}
        call_request = make_request(**fields, **{field: entries})
        try:
            reply = await self._calls.call(method, call_request, self._timeout_s, request.principal)
        except FoqsError as error:
            return [error] * len(entries)
        found = [
            None if outcome.error is None else error_from_struct(outcome.error, "refused")
            for outcome in reply.outcomes or ()
        ]
        missing: list[FoqsError | None] = [
            UnknownOutcome(
                "the host's reply has no outcome for this message; the call may have taken effect, so check before you repeat it"
            )
        ]
        return found + missing * (len(entries) - len(found))


_REQUESTS: Final[Mapping[str, tuple[Callable[..., Any], str]]] = {
    "ack": (ttypes.AckRequest, "leases"),
    "extendLease": (ttypes.ExtendLeaseRequest, "extensions"),
}
"""The request of each call that settles deliveries, and the name of its list."""


def _sent(result: Any, *, is_fifo: bool) -> _Sent | SqsError:
    """Return what the reply says of an enqueued item, or the error."""
    if isinstance(result, str) or result.error is None:
        item_id = result if isinstance(result, str) else raw_id(result.id).decode()
        sent = {"MessageId": message_id(item_id)}
        return {**sent, "SequenceNumber": fifo.sequence_number(item_id)} if is_fifo else sent
    error = error_from_struct(result.error, "refused")
    if isinstance(error, LimitExceeded) and (error.field or "").endswith("payload"):
        return too_long_for_namespace(error.message)
    return from_foqs_error(error)


def _system_attributes(message: envelope.Message, delivery: Any, received_ms: int) -> dict[str, str]:
    found = {
        "SenderId": message.sender,
        "SentTimestamp": str(received_ms - (delivery.age_ms or 0)),
        "ApproximateReceiveCount": str(delivery.attempt),
        "ApproximateFirstReceiveTimestamp": str(received_ms - (delivery.first_delivery_age_ms or 0)),
        "MessageDeduplicationId": message.deduplication_id,
        "MessageGroupId": message.group,
        TRACE_HEADER: (message.trace or x_ray_trace(delivery.trace_context or b"")).decode(errors="replace"),
    }
    return {name: value for name, value in found.items() if value}


def _check_batch_size(entries: Sequence[Parameters]) -> None:
    """Refuse a batch whose messages together are too long. Raises `SqsError`."""
    size_bytes = 0
    for parameters in entries:
        try:
            size_bytes += message_size(parameters)
        except SqsError:
            continue  # this entry fails alone
    if size_bytes > queue_attributes.MESSAGE_BYTES_MAX:
        raise SqsError(
            "BatchRequestTooLong",
            f"Batch requests cannot be longer than {queue_attributes.MESSAGE_BYTES_MAX} bytes. "
            f"You have sent {size_bytes} bytes.",
        )


# -------------------------------------------------------------------- settlements


def _parse_receipt(parameters: Parameters, queue: QueueName) -> Receipt:
    handle = parameters.required_text("ReceiptHandle")
    receipt = parse_receipt_handle(handle, queue.name)
    if receipt is None:
        raise _invalid_handle(handle)
    return receipt


def _invalid_handle(handle: str) -> SqsError:
    return SqsError("ReceiptHandleIsInvalid", f'The input receipt handle "{handle}" is not a valid receipt handle.')


def _deletion(parameters: Parameters, queue: QueueName) -> _Settlement:
    receipt = _parse_receipt(parameters, queue)
    return _Settlement("ack", receipt, ttypes.Lease(id=receipt.item_id.encode(), token=receipt.token))


def _visibility_change(parameters: Parameters, queue: QueueName) -> _Settlement:
    seconds = parameters.visibility_timeout(is_required=True)
    receipt = _parse_receipt(parameters, queue)
    extension = ttypes.Extension(id=receipt.item_id.encode(), token=receipt.token, lease_ms=(seconds or 0) * 1_000)
    return _Settlement("extendLease", receipt, extension)


def _deletion_error(parameters: Parameters, error: FoqsError) -> SqsError | None:
    """Return why a message was not deleted; None if another delivery superseded the receipt, as SQS does."""
    if isinstance(error, StaleLease):
        return None
    if isinstance(error, NotFound):
        return _invalid_handle(parameters.required_text("ReceiptHandle"))
    return from_foqs_error(error)


def _visibility_error(parameters: Parameters, error: FoqsError) -> SqsError:
    if isinstance(error, StaleLease | NotFound):
        return invalid_parameter(
            parameters.text("ReceiptHandle"),
            "ReceiptHandle",
            "Message does not exist or is not available for visibility timeout change.",
        )
    return from_foqs_error(error)


def _batch_reply(results: Sequence[tuple[str, Mapping[str, Any] | SqsError]]) -> Mapping[str, Any]:
    successful = [{"Id": entry_id, **found} for entry_id, found in results if not isinstance(found, SqsError)]
    failed = [
        {
            "Id": entry_id,
            "SenderFault": SHAPES[found.shape].is_sender_fault,
            "Code": found.query_code,
            "Message": found.message,
        }
        for entry_id, found in results
        if isinstance(found, SqsError)
    ]
    return {"Successful": successful, "Failed": failed} if failed else {"Successful": successful}
