"""The actions about queues: create, find, list, change, purge and delete them.

Always true: a change is stored in the catalog before the reply; what is read is the
catalog as it applies at this host. Counts of messages are those of the topic.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from foqs.catalog.document import QueueEntry
from foqs.core.items.item import State
from foqs.rpc.in_host_calls import InHostCalls
from foqs.sqs import fifo, queue_attributes
from foqs.sqs.action_request import ActionRequest, ActionTarget
from foqs.sqs.errors import (
    SqsError,
    invalid_parameter,
    invalid_value,
    missing_parameter,
    queue_does_not_exist,
    unsupported,
)
from foqs.sqs.identifiers import (
    Account,
    QueueName,
    check_queue_name,
    page_token,
    parse_arn,
    parse_page_token,
    parse_queue_url,
)
from foqs.sqs.move_tasks import MoveTasks
from foqs.sqs.parameters import check_attribute_names, page_size
from foqs.sqs.queue_directory import QueueDirectory
from foqs.sqs.redrive_policy import allowed_sources, sources_of
from foqs_contract.errors import FoqsError
from foqs_contract.idl import ttypes
from foqs_contract.plurals import counted

log = logging.getLogger(__name__)

PURGE_INTERVAL_S: Final = 60.0
_PAGE_MAX: Final = 1_000
_ALL_STATES: Final = [int(state) for state in State]


def target_of_call(request: ActionRequest) -> ActionTarget:
    """Return the target of a call that names no queue: its account."""
    return ActionTarget(request.account)


def target_of_name(request: ActionRequest) -> ActionTarget:
    """Return the target of CreateQueue. Raises `SqsError`."""
    return ActionTarget(request.account, request.parameters.text("QueueName"))


def target_of_queue(request: ActionRequest) -> ActionTarget:
    """Return the requested queue. Raises `SqsError`."""
    queue = requested_queue(request)
    return ActionTarget(queue.account, queue.name)


def target_of_owner(request: ActionRequest) -> ActionTarget:
    """Return the queue of GetQueueUrl. Raises `SqsError`."""
    queue = _named_queue(request)
    return ActionTarget(queue.account, queue.name)


def _named_queue(request: ActionRequest) -> QueueName:
    """Return the queue of QueueName and QueueOwnerAWSAccountId. Raises `SqsError`."""
    owner = request.parameters.text("QueueOwnerAWSAccountId")
    account = replace(request.account, digits=owner) if owner else request.account
    return QueueName(account, request.parameters.required_text("QueueName"))


def requested_queue(request: ActionRequest) -> QueueName:
    """Return the queue of QueueUrl, or else of the path. Raises `SqsError`."""
    url = request.parameters.text("QueueUrl")
    if url is None:
        if request.path_queue is None:
            raise missing_parameter("QueueUrl")
        return request.path_queue
    queue = parse_queue_url(url, request.account)
    if queue is None:
        raise queue_does_not_exist()
    return queue


class QueueActions:
    """Serves the actions about queues.

    Args:
        timeout_s: the time for each call inside the host.
        now_s: seconds since 1970-01-01 UTC.
        loop_time: the clock of deadlines, in seconds.
    """

    def __init__(
        self,
        directory: QueueDirectory,
        calls: InHostCalls,
        tasks: MoveTasks,
        timeout_s: float,
        now_s: Callable[[], float],
        loop_time: Callable[[], float],
    ) -> None:
        self._directory = directory
        self._calls = calls
        self._tasks = tasks
        self._timeout_s = timeout_s
        self._now_s = now_s
        self._loop_time = loop_time
        self._purged_at_s: dict[tuple[str, str], float] = {}
        """When queues were purged in the last minute, by namespace and name."""

    # ------------------------------------------------------------ create and delete

    async def create_queue(self, request: ActionRequest) -> Mapping[str, Any]:
        parameters = request.parameters
        queue = QueueName(request.account, check_queue_name(parameters.text("QueueName") or ""))
        raw = parameters.text_map("Attributes") or {}
        queue_attributes.check_fifo_name(queue.name, raw)
        checked = queue_attributes.check_attributes(raw, is_fifo=queue.is_fifo)
        attributes = {name: value for name, value in checked.items() if value}
        raw_tags = parameters.text_map("tags") or parameters.text_map("Tags")
        tags = queue_attributes.check_tags(raw_tags, queue.name, {}) if raw_tags else {}
        now_ms = int(self._now_s() * 1_000)
        now_s = now_ms // 1_000
        created = QueueEntry(attributes, tags, now_s, now_s)
        if queue.is_fifo:
            scope = queue_attributes.new_scope(attributes)
            created = replace(
                created,
                attributes=queue_attributes.without_scope(attributes, scope),
                key_window_ms=fifo.KEY_WINDOW_MS,
                keys_in_topic=scope == queue_attributes.SCOPE_OF_QUEUE,
                keys_alone=True,
                keys_since_ms=now_ms,
            )

        def create(before: QueueEntry | None) -> QueueEntry:
            if before is None:
                return created
            known = _shown_attributes(queue, before)
            for name, value in attributes.items():
                if known.get(name, "") != value:
                    raise SqsError(
                        "QueueNameExists",
                        f"A queue already exists with the same name and a different value for attribute {name}",
                    )
            return before

        await self._check_redrive_policy(queue, created, attributes)
        if queue.is_fifo:
            await self._check_no_items(request, queue)
        await self._change(request, queue, create)
        return {"QueueUrl": request.queue_url(queue)}

    async def _check_no_items(self, request: ActionRequest, queue: QueueName) -> None:
        """Check that the topic of a FIFO queue that is new has no items. Raises `SqsError`.

        They may be in other shards than the messages of their groups, and would be delivered beside them.
        """
        namespace = self._directory.namespace_of(queue.account)
        if queue.name in self._directory.queues(namespace):
            return
        counting = ttypes.CountItemsRequest(
            namespace_name=namespace.encode(),
            filter=ttypes.ItemFilter(topic=queue.name.encode(), states=_ALL_STATES),
        )
        items = (await self._calls.call("countItems", counting, self._timeout_s, request.principal)).items
        if items and not await self._exists(queue):
            raise unsupported(
                f"The topic {queue.name} has {counted(items, 'item')} already, and a FIFO queue begins without any. Use another "
                f"name, or end them first: foqs topic purge {queue.name}"
            )

    async def _exists(self, queue: QueueName) -> bool:
        """Return whether a queue exists, also one that another host has created just now. Raises `Unavailable`."""
        try:
            await self._directory.find(queue)
        except SqsError:
            return False
        return True

    async def delete_queue(self, request: ActionRequest) -> Mapping[str, Any]:
        queue = requested_queue(request)
        await self._directory.find(queue)
        await self._tasks.cancel_into(queue)
        await self._purge(request, queue)
        await self._change(request, queue, lambda _: None)
        try:
            await self._purge(request, queue)  # messages that were sent meanwhile
        except FoqsError as error:
            log.warning("messages of the deleted queue %s may be left until their TTL ends: %s", queue.name, error)
        return {}

    async def purge_queue(self, request: ActionRequest) -> Mapping[str, Any]:
        queue = requested_queue(request)
        await self._directory.find(queue)
        key = (self._directory.namespace_of(queue.account), queue.name)
        now_s = self._loop_time()
        self._purged_at_s = {
            other: at_s for other, at_s in self._purged_at_s.items() if now_s - at_s < PURGE_INTERVAL_S
        }
        if key in self._purged_at_s:
            raise SqsError(
                "PurgeQueueInProgress",
                f"Only one PurgeQueue operation on {queue.name} is allowed every 60 seconds.",
            )
        await self._purge(request, queue)
        self._purged_at_s[key] = now_s
        return {}

    async def _purge(self, request: ActionRequest, queue: QueueName) -> None:
        purge = ttypes.TopicRequest(
            namespace_name=self._directory.namespace_of(queue.account).encode(), topic=queue.name.encode()
        )
        await self._calls.call("purgeTopic", purge, self._timeout_s, request.principal)

    # ----------------------------------------------------------------------- find

    async def get_queue_url(self, request: ActionRequest) -> Mapping[str, Any]:
        queue = _named_queue(request)
        await self._directory.find(queue)
        return {"QueueUrl": request.queue_url(queue)}

    async def list_queues(self, request: ActionRequest) -> Mapping[str, Any]:
        prefix = request.parameters.text("QueueNamePrefix") or ""
        names = self._directory.queues(self._directory.namespace_of(request.account))
        found = [name for name in sorted(names) if name.startswith(prefix)]
        return self._page(request, "QueueUrls", request.account, found)

    async def list_dead_letter_source_queues(self, request: ActionRequest) -> Mapping[str, Any]:
        target = requested_queue(request)
        await self._directory.find(target)
        queues = self._directory.queues(self._directory.namespace_of(target.account))
        page = self._page(request, "queueUrls", target.account, sources_of(target.name, queues))
        return {"queueUrls": [], **page}

    def _page(self, request: ActionRequest, member: str, account: Account, names: list[str]) -> Mapping[str, Any]:
        """Return a page of queue URLs; it names the next one only if the caller has limited the page, as SQS does."""
        limit = page_size(request.parameters)
        listing = f"{self._directory.configured(account).text} {member}"
        token = request.parameters.text("NextToken")
        if token is not None:
            last = parse_page_token(listing, token)
            names = [name for name in names if name > last]
        shown = names[: limit or _PAGE_MAX]
        reply: dict[str, Any] = {}
        if shown:
            reply[member] = [request.queue_url(QueueName(account, name)) for name in shown]
        if limit is not None and len(shown) < len(names):
            reply["NextToken"] = page_token(listing, shown[-1])
        return reply

    # ------------------------------------------------------------------ attributes

    async def get_queue_attributes(self, request: ActionRequest) -> Mapping[str, Any]:
        queue = requested_queue(request)
        entry = await self._directory.find(queue)
        names = request.parameters.texts("AttributeNames") or []
        check_attribute_names(names, queue_attributes.KNOWN_NAMES)
        values = {
            **_shown_attributes(queue, entry),
            "QueueArn": queue.arn,
            "CreatedTimestamp": str(entry.created_at_s),
            "LastModifiedTimestamp": str(entry.changed_at_s),
        }
        if "All" in names or any(name in queue_attributes.COUNT_NAMES for name in names):
            values |= await self._counts(request, queue)
        chosen = values if "All" in names else {name: values[name] for name in names if name in values}
        return {"Attributes": chosen} if chosen else {}

    async def set_queue_attributes(self, request: ActionRequest) -> Mapping[str, Any]:
        queue = requested_queue(request)
        present = await self._directory.find(queue)
        raw = request.parameters.text_map("Attributes")
        if raw is None:
            raise missing_parameter("Attributes")
        attributes = queue_attributes.check_attributes(raw, is_fifo=queue.is_fifo)
        await self._check_redrive_policy(queue, present, attributes)

        def change(entry: QueueEntry) -> QueueEntry:
            new = queue_attributes.without_scope(attributes, fifo.scope_of(entry)) if queue.is_fifo else attributes
            return replace(entry, attributes=_merged(entry.attributes, new))

        await self._update(request, queue, change)
        return {}

    async def _counts(self, request: ActionRequest, queue: QueueName) -> Mapping[str, str]:
        name = queue.name.encode()
        listing = ttypes.GetActiveTopicsRequest(
            namespace_name=self._directory.namespace_of(queue.account).encode(),
            filter=ttypes.TopicFilter(prefix=name, states=_ALL_STATES),
            page=ttypes.Page(limit=1),
        )
        reply = await self._calls.call("getActiveTopics", listing, self._timeout_s, request.principal)
        # A topic sorts before every other one that begins with its name.
        ready = deferred = leased = 0
        for found in reply.topics or ():
            if found.topic in (queue.name, name):
                ready, deferred, leased = found.ready or 0, found.deferred or 0, found.leased or 0
        counts = (ready, deferred, leased)
        return {name: str(count) for name, count in zip(queue_attributes.COUNT_NAMES, counts, strict=True)}

    async def _check_redrive_policy(self, queue: QueueName, own: QueueEntry, attributes: Mapping[str, str]) -> None:
        """Check that the target of a redrive policy exists, is another queue of the type, and allows this one. Raises `SqsError`."""
        policy = attributes.get("RedrivePolicy")
        target = parse_arn(json.loads(policy)["deadLetterTargetArn"]) if policy else None
        if target is None:
            return
        try:
            if self._directory.namespace_of(target.account) != self._directory.namespace_of(queue.account):
                raise queue_does_not_exist()
            entry = await self._directory.find(target)
        except SqsError:
            reason = f"Dead letter target does not exist: {target.name}."
            raise invalid_parameter(policy, "RedrivePolicy", reason) from None
        if target.name == queue.name:
            raise invalid_parameter(policy, "RedrivePolicy", "A queue cannot be its own dead letter target.")
        if target.is_fifo != queue.is_fifo:
            raise invalid_parameter(
                policy, "RedrivePolicy", "Dead-letter target must be same type of queue as the source."
            )
        if entry.keys_in_topic != own.keys_in_topic:
            scope = fifo.scope_of(own)
            reason = (
                f"Dead-letter target must have the DeduplicationScope {scope} of the source, and the scope of a queue is fixed: "
                f"create {target.name} again with it, or name another queue that has it."
            )
            raise invalid_parameter(policy, "RedrivePolicy", reason)
        sources = allowed_sources(entry)
        if sources is not None and not any(self._directory.is_same(queue, source) for source in sources):
            reason = f"The RedriveAllowPolicy of {target.name} does not allow this source queue."
            raise invalid_parameter(policy, "RedrivePolicy", reason)

    # ----------------------------------------------------------- tags, permissions

    async def tag_queue(self, request: ActionRequest) -> Mapping[str, Any]:
        queue = requested_queue(request)
        await self._directory.find(queue)
        tags = request.parameters.text_map("Tags")
        await self._update(
            request, queue, lambda entry: replace(entry, tags=queue_attributes.check_tags(tags, queue.name, entry.tags))
        )
        return {}

    async def untag_queue(self, request: ActionRequest) -> Mapping[str, Any]:
        queue = requested_queue(request)
        await self._directory.find(queue)
        keys = request.parameters.texts("TagKeys")
        if not keys:  # SQS says this also of no key at all
            raise invalid_value(
                f"Tag keys must be between 1 and {queue_attributes.TAG_KEY_CHARS_MAX} characters in length."
            )
        await self._update(
            request,
            queue,
            lambda entry: replace(entry, tags={key: value for key, value in entry.tags.items() if key not in keys}),
        )
        return {}

    async def list_queue_tags(self, request: ActionRequest) -> Mapping[str, Any]:
        tags = (await self._directory.find(requested_queue(request))).tags
        return {"Tags": dict(tags)} if tags else {}

    async def add_permission(self, request: ActionRequest) -> Mapping[str, Any]:
        queue = requested_queue(request)
        await self._directory.find(queue)
        label = request.parameters.required_text("Label")
        accounts = request.parameters.texts("AWSAccountIds") or []
        actions = request.parameters.texts("Actions") or []
        arn = queue.arn
        await self._update_policy(
            request, queue, lambda policy: queue_attributes.with_permission(policy, arn, label, accounts, actions)
        )
        return {}

    async def remove_permission(self, request: ActionRequest) -> Mapping[str, Any]:
        queue = requested_queue(request)
        await self._directory.find(queue)
        label = request.parameters.required_text("Label")
        await self._update_policy(request, queue, lambda policy: queue_attributes.without_permission(policy, label))
        return {}

    # ------------------------------------------------------------------- changing

    async def _change(
        self, request: ActionRequest, queue: QueueName, change: Callable[[QueueEntry | None], QueueEntry | None]
    ) -> None:
        is_administrator = request.principal is not None and request.principal.is_admin
        deadline = self._loop_time() + self._timeout_s
        await self._directory.change(queue, change, deadline, is_administrator=is_administrator)

    async def _update(
        self, request: ActionRequest, queue: QueueName, update: Callable[[QueueEntry], QueueEntry]
    ) -> None:
        """Change a queue that exists. Raises `SqsError` if it was deleted meanwhile."""
        now_s = int(self._now_s())

        def change(before: QueueEntry | None) -> QueueEntry:
            if before is None:
                raise queue_does_not_exist()
            after = update(before)
            return before if after == before else replace(after, changed_at_s=now_s)

        await self._change(request, queue, change)

    async def _update_policy(self, request: ActionRequest, queue: QueueName, update: Callable[[str], str]) -> None:
        await self._update(
            request,
            queue,
            lambda entry: replace(
                entry, attributes=_merged(entry.attributes, {"Policy": update(entry.attributes.get("Policy", ""))})
            ),
        )


def _shown_attributes(queue: QueueName, entry: QueueEntry) -> dict[str, str]:
    """Return the attributes of a queue with the defaults of those that are not stored."""
    return queue_attributes.with_defaults(entry.attributes, fifo.scope_of(entry) if queue.is_fifo else None)


def _merged(before: Mapping[str, str], changed: Mapping[str, str]) -> dict[str, str]:
    """Return attributes after a change; an empty value removes an attribute."""
    return {name: value for name, value in {**before, **changed}.items() if value}
