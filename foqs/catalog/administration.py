"""The calls that read and change the configuration: namespaces, grants, pauses, the whole document.

Always true: this host makes one change at a time; a change is stored before it
applies here, and applies here before the caller gets the reply. Changes of other
hosts apply as soon as the catalog reports them. A change that has started
continues if its caller leaves. A namespace is deleted only if it certainly holds
no items. Knows no Thrift.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

from foqs.catalog import changes
from foqs.catalog.document import (
    EMPTY_DOCUMENT,
    IDENTITY_MAX,
    Document,
    MalformedDocument,
    NamespaceRecord,
    Permission,
    PolicyRecord,
    format_of,
    parse,
    render,
    unknown_fields,
)
from foqs.catalog.namespace_deletion import Deletions
from foqs.catalog.namespace_settings import SETTING_RANGES, check_consistent
from foqs.catalog.namespaces import Namespaces
from foqs.catalog.port import (
    Catalog,
    CatalogConflict,
    CatalogError,
    CatalogFailed,
    CatalogFull,
    CatalogUnknownOutcome,
    CatalogUnreachable,
)
from foqs.catalog.shares import check_share
from foqs.catalog.turns import Turns
from foqs.core.items.idempotency_keys import INCARNATION_MAX
from foqs.core.items.item import TopicName
from foqs.shard.host_shards import HostShards
from foqs.shard.shard import OwnedShard
from foqs_contract.errors import (
    HANDOVER_RETRY_MS,
    DeadlineExceeded,
    FoqsError,
    InvalidArgument,
    LimitExceeded,
    NotImplementedYet,
    NotOwner,
    Unavailable,
    UnknownOutcome,
)
from foqs_contract.plurals import counted

log = logging.getLogger(__name__)

FIRST_NAMESPACE: Final = "default"
"""The namespace of a new catalog."""

_ATTEMPTS_MAX: Final = 10
"""How often a change is tried if changes of other hosts come between."""

_RETRY_MS: Final = 1_000

DocumentChange = Callable[[Document], Document]
ChangeListener = Callable[[Collection[str]], None]
"""Called with the names of the namespaces that are new, changed or gone."""


@dataclass(slots=True, frozen=True)
class UsageReport:
    """The items of a namespace in shards of this host, and this host's enqueues of it."""

    items: int
    payload_bytes: int
    topics: Collection[str]
    enqueues_last_minute: int


class EnqueueCounts(Protocol):
    """The counts of what each namespace has enqueued lately at this host."""

    def enqueued_last_minute(self, namespace: str) -> int:
        """Return about how many items the namespace has enqueued at this host in the last minute."""
        ...

    def forget(self, namespaces: Iterable[str]) -> None:
        """Drop the counts of deleted namespaces. A new one of the same name starts at zero."""
        ...


class Administration:
    """The configuration calls of one host. Every method may raise `FoqsError`.

    Args:
        timeout_ms_max: the longest deadline of a call; keys are remembered for longer.
        deletions: deletes namespaces, by this host alone or together with the other hosts of the cluster.
        find_older_hosts: returns the names of the hosts of the cluster that cannot read a format of the document.
            Raises `Unavailable` if they are not known.
        item_bytes_max: limit of payload and metadata of an item in a call.
        on_topics_resumed: called with topics that are no longer paused.
    """

    def __init__(
        self,
        catalog: Catalog,
        namespaces: Namespaces,
        shards: HostShards,
        timeout_ms_max: int,
        enqueue_counts: EnqueueCounts,
        item_bytes_max: int,
        on_topics_resumed: Callable[[Iterable[TopicName]], None],
        deletions: Deletions,
        find_older_hosts: Callable[[int], Awaitable[Sequence[str]]],
        rng: Random,
    ) -> None:
        self._catalog = catalog
        self._namespaces = namespaces
        self._shards = shards.served
        self._statuses = shards.statuses
        self._timeout_ms_max = timeout_ms_max
        self._enqueue_counts = enqueue_counts
        self._item_bytes_max = item_bytes_max
        self._on_topics_resumed = on_topics_resumed
        self._rng = rng
        self._deletions = deletions
        self._find_older_hosts = find_older_hosts
        self._turns = Turns(namespaces.weight_of)
        """The turns of changes of the catalog, and of `refresh`: one at a time."""
        self._running_changes: set[asyncio.Task[Document]] = set()
        self._listeners: list[ChangeListener] = [deletions.on_document_changed]

    # -------------------------------------------------------------- life cycle

    async def open(self) -> None:
        """Apply the stored document; create the first namespace in a new catalog.

        Waits without limit for a catalog that is unreachable. Raises `CatalogError`: the document cannot be used.
        """
        document, last_error = EMPTY_DOCUMENT, ""
        while document == EMPTY_DOCUMENT:
            try:
                document = await self._catalog.load()
                if document == EMPTY_DOCUMENT:
                    first = changes.new_catalog(FIRST_NAMESPACE, self._rng.randint(1, IDENTITY_MAX))
                    await self._catalog.replace(first)
                    document = first
            except CatalogConflict:
                continue  # another host was first
            except (CatalogUnreachable, CatalogUnknownOutcome) as error:
                if str(error) != last_error:
                    last_error = str(error)
                    log.warning("the catalog cannot be read yet; trying again: %s", last_error)
                await asyncio.sleep(_RETRY_MS / 1_000)
        self._apply(document)
        for name, namespace in document.namespaces.items():
            try:
                self._check_settings(namespace)
            except FoqsError as error:
                log.warning("the settings of namespace %r do not fit the options of this host: %s", name, error)

    async def refresh(self) -> None:
        """Apply the stored document, unless it is empty. Raises `CatalogError`."""
        await self._turns.acquire("")
        try:
            await self._load_and_apply(self._catalog.load)
        finally:
            self._turns.release()

    def add_change_listener(self, listener: ChangeListener) -> None:
        """Register a listener that is called after each change of the document."""
        self._listeners.append(listener)

    async def delete_with_others(self) -> None:
        """Take part in the deletions of other hosts, until cancelled."""
        await self._deletions.run(self)

    async def watch(self) -> None:
        """Apply changes of other hosts, until cancelled. A document that cannot be read changes nothing."""
        last_error = ""
        while True:
            await self._catalog.wait_for_change(self._namespaces.document.version)
            try:
                await self._load_and_apply(self._load_not_empty)
                last_error = ""
            except CatalogError as error:
                if str(error) != last_error:
                    last_error = str(error)
                    log.error("the stored catalog cannot be read, so the last readable one stays in use: %s", error)  # noqa: TRY400 - the text says all
            except Exception:  # later changes must still be seen
                last_error = "unexpected"
                log.exception(
                    "a change of the catalog by another host could not be applied here, for an unexpected error; trying again"
                )
            if last_error:
                await asyncio.sleep(_RETRY_MS / 1_000)

    async def _load_and_apply(self, load: Callable[[], Awaitable[Document]]) -> Document:
        """Load the stored document, apply it and return it. Raises `CatalogError`.

        It is loaded again if another document was applied meanwhile, so that an older one never replaces a newer one.
        """
        while True:
            current = self._namespaces.document
            document = await load()
            if self._namespaces.document is current:
                if document != EMPTY_DOCUMENT:
                    self._apply(document)
                return document

    async def _load_not_empty(self) -> Document:
        """Return the stored document. Raises `CatalogFailed` if it has become empty."""
        document = await self._catalog.load()
        if document == EMPTY_DOCUMENT and self._namespaces.document.version:
            raise CatalogFailed(
                "the stored catalog is empty, and was not before; import an export: foqs config import FILE"
            )
        return document

    def _apply(self, document: Document) -> None:
        if document != self._namespaces.document:
            log.info(
                "catalog version %d applies, with %s", document.version, counted(len(document.namespaces), "namespace")
            )
            unknown = unknown_fields(document)
            if unknown != unknown_fields(self._namespaces.document):
                log.warning(
                    "the catalog has fields that this version does not know; it keeps them: %s", ", ".join(unknown)
                )
            before, after = self._namespaces.document.namespaces, document.namespaces
            resumed = self._namespaces.apply(document)
            for shard in self._shards.values():
                shard.follow_group_rules()
            self._enqueue_counts.forget(
                name for name, old in before.items() if name not in after or after[name].incarnation != old.incarnation
            )
            changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
            for listener in self._listeners:
                listener(changed)
            if resumed:
                self._on_topics_resumed(resumed)

    # ----------------------------------------------------------------- reading

    def document(self) -> Document:
        """Return the document that applies here. Raises `Unavailable`."""
        document = self._namespaces.document
        if not document.version:
            raise Unavailable("the host has not read its namespaces yet; try again", retry_after_ms=_RETRY_MS)
        return document

    def namespace(self, name: str) -> NamespaceRecord:
        """Return a namespace as it was configured. Raises `NamespaceNotFound`."""
        return changes.find_namespace(self.document(), name)

    def settings(self, namespace: NamespaceRecord) -> Mapping[str, int]:
        """Return the settings of a namespace with the host's defaults."""
        default = self._namespaces.default_settings
        return {name: getattr(default, name) for name in SETTING_RANGES} | dict(namespace.settings)

    def usage(self, name: str, shard_numbers: Collection[int] | None = None) -> UsageReport:
        """Return the usage of a namespace, as far as it is counted, in these shards or all of this host. Raises `Unavailable`."""
        self.namespace(name)
        shards = (
            self._all_shards()
            if shard_numbers is None
            else [self._serving_shard(number) for number in sorted(set(shard_numbers))]
        )
        topics = {topic for shard in shards for topic in shard.counts.topic_names(name)}
        usages = [shard.memory.usage.lower_bound(name) for shard in shards]
        items, payload_bytes = sum(items for items, _ in usages), sum(size for _, size in usages)
        return UsageReport(items, payload_bytes, topics, self._enqueue_counts.enqueued_last_minute(name))

    def export(self) -> str:
        """Return the document as JSON that `restore` accepts."""
        return render(self.document())

    # ---------------------------------------------------------------- changing

    async def create(
        self, name: str, tier: str | None, settings: Mapping[str, int], deadline: float
    ) -> NamespaceRecord:
        """Create a namespace, and return it. Creating it again with the same settings changes nothing."""
        incarnation, own_tier = self._new_incarnation(), tier or self._namespaces.tier
        return await self._change_namespace(
            name, lambda before: changes.create(before, name, own_tier, settings, incarnation=incarnation), deadline
        )

    async def update(
        self, name: str, tier: str | None, settings: Mapping[str, int], deadline: float
    ) -> NamespaceRecord:
        """Change the given settings of a namespace, and return it."""
        return await self._change_namespace(name, lambda before: changes.update(before, name, tier, settings), deadline)

    async def change(self, change: DocumentChange, deadline: float, *, is_known_empty: bool = False) -> None:
        """Store a change. `is_known_empty`: all shards are known to hold nothing of a namespace that it removes."""
        await self._change(change, deadline, is_known_empty=is_known_empty)

    async def _change_namespace(self, name: str, change: DocumentChange, deadline: float) -> NamespaceRecord:
        def checked(before: Document) -> Document:
            after = change(before)
            self._check_settings(after.namespaces[name])
            return after

        return (await self._change(checked, deadline)).namespaces[name]

    async def delete(self, name: str, deadline: float) -> None:
        """Delete a namespace. Raises `InvalidArgument` if it holds items."""
        self.namespace(name)
        await self._deletions.delete(self, name, deadline)

    async def grant(
        self,
        name: str,
        principal: str,
        permissions: frozenset[Permission],
        deadline: float,
        *,
        is_administrator: bool = False,
    ) -> None:
        """Set the permissions of a principal; an empty set revokes the grant. See `change_part`."""
        await self.change_part(
            name,
            lambda before: changes.grant(before, name, principal, permissions),
            deadline,
            is_administrator=is_administrator,
        )

    async def pause(
        self, name: str, topic: str, deadline: float, *, paused: bool, is_administrator: bool = False
    ) -> None:
        """Stop the delivery of a topic, or resume it. See `change_part`."""
        await self.change_part(
            name,
            lambda before: changes.pause(before, name, topic, paused=paused),
            deadline,
            is_administrator=is_administrator,
        )

    async def set_policy(
        self, name: str, topic: str, policy: PolicyRecord, deadline: float, *, is_administrator: bool = False
    ) -> None:
        """Replace the policy of a topic. Without any rule it is removed. See `change_part`.

        Raises:
            NotImplementedYet: a host of the cluster would not keep it.
        """
        await self.change_part(
            name,
            lambda before: changes.set_policy(before, name, topic, policy),
            deadline,
            is_administrator=is_administrator,
        )

    async def change_part(self, name: str, change: DocumentChange, deadline: float, *, is_administrator: bool) -> None:
        """Change the part of one namespace in the document.

        Args:
            is_administrator: the caller administers the whole system, and may exceed the share of the namespace.

        Raises:
            LimitExceeded: the change exceeds the share of the namespace; see `shares`.
        """

        def checked(before: Document) -> Document:
            after = change(before)
            if after is not before:
                check_share(before, after, name, self._namespaces.weight_of(name), self._catalog.bytes_max)
            return after

        await self._change(change if is_administrator else checked, deadline, turn=name)

    async def restore(self, text: str, deadline: float) -> None:
        """Replace the configuration by an export. A namespace that the export lacks must hold no items.

        Raises:
            InvalidArgument: names the place in the export that is wrong, or a namespace that holds items.
        """
        try:
            imported = parse(text, allow_unknown=False)  # else a misspelt field would be ignored
        except MalformedDocument as error:
            raise InvalidArgument(f"{error}; correct that place", field="json") from None
        for name, namespace in imported.namespaces.items():
            try:
                self._check_settings(namespace)
            except FoqsError as error:
                raise InvalidArgument(f"namespaces.{name}.{error.field}: {error.message}", field="json") from None
        incarnation = self._new_incarnation()
        try:
            await self._change(
                lambda before: changes.restore(before, imported, incarnation=incarnation), deadline, from_empty=True
            )
        except InvalidArgument as error:
            raise InvalidArgument(error.message, field="json") from None

    def _new_incarnation(self) -> int:
        """Return a random incarnation: not even a catalog that was lost can be expected to have had it."""
        return self._rng.randint(1, INCARNATION_MAX)

    def _check_settings(self, namespace: NamespaceRecord) -> None:
        """Refuse settings that contradict one another or the host's own. Raises `InvalidArgument`."""
        settings = self.settings(namespace)
        check_consistent(settings)
        if settings["payload_bytes_max"] + settings["metadata_bytes_max"] > self._item_bytes_max:
            raise InvalidArgument(
                f"an item of this size and its metadata would have more than the {self._item_bytes_max} bytes that a frame of "
                "this host carries; lower it, or raise rpc.frame_bytes_max of the hosts",
                field="settings.payload_bytes_max",
            )
        if namespace.settings.get("key_window_ms", self._timeout_ms_max + 1) <= self._timeout_ms_max:
            raise InvalidArgument(
                f"a call may last {self._timeout_ms_max} ms, so a retry after that could enqueue twice; "
                "use a larger value",
                field="settings.key_window_ms",
            )

    # ------------------------------------------------------- one change at a time

    async def _change(
        self,
        change: DocumentChange,
        deadline: float,
        *,
        turn: str = "",
        from_empty: bool = False,
        is_known_empty: bool = False,
    ) -> Document:
        """Store the changed document, apply it and return it.

        Args:
            turn: the namespace that waits for its turn; empty for the administrators of the whole system.

        Raises:
            DeadlineExceeded: other changes took too long; nothing was changed.
            UnknownOutcome: the change may be stored, or may still be.
            LimitExceeded: the catalog would be too large.
            Unavailable: the catalog cannot be read or written now; nothing was changed.
        """
        try:
            async with asyncio.timeout_at(deadline):
                await self._turns.acquire(turn)
        except TimeoutError:
            raise DeadlineExceeded(
                "the time ran out while waiting for other changes; nothing was changed; try again"
            ) from None
        task = asyncio.ensure_future(
            self._change_now(change, deadline, from_empty=from_empty, is_known_empty=is_known_empty)
        )
        self._running_changes.add(task)
        task.add_done_callback(self._on_change_ended)
        loop = asyncio.get_running_loop()
        done, _ = await asyncio.wait((task,), timeout=max(0.0, deadline - loop.time()))
        if not done:
            raise UnknownOutcome(
                "the change was not stored by the deadline and may still be stored; read it before you repeat it"
            )
        return task.result()

    def _on_change_ended(self, task: asyncio.Task[Document]) -> None:
        self._turns.release()
        self._running_changes.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: its caller may have left

    async def _change_now(
        self, change: DocumentChange, deadline: float, *, from_empty: bool, is_known_empty: bool
    ) -> Document:
        try:
            for _ in range(_ATTEMPTS_MAX):
                before = await self._load_and_apply(self._catalog.load if from_empty else self._load_not_empty)
                after = change(before)
                removed = self._removed_namespaces(after) if not is_known_empty else []
                is_newer_format = format_of(after) > format_of(before)
                if is_newer_format:
                    await self._check_all_hosts_read(after)
                async with self._closed_and_empty(removed, deadline):
                    if after is not before:
                        current = self._namespaces.document
                        try:
                            await self._catalog.replace(after, before)
                        except CatalogConflict:
                            continue
                        except CatalogUnknownOutcome:
                            # Apply what is stored before the namespaces are reopened: they may be deleted.
                            with suppress(CatalogError):  # the outcome stays unknown
                                await self._load_and_apply(self._catalog.load)
                            raise
                        if self._namespaces.document is current:
                            self._apply(after)  # else the document that applies is as new, or newer
                        if is_newer_format:
                            await self._confirm_all_hosts_read(after)
                        if removed:
                            await self._confirm_nothing_was_accepted(deadline)
                return after
        except CatalogUnknownOutcome as error:
            raise UnknownOutcome(
                f"{error}; the change may or may not be stored; read it before you repeat it"
            ) from None
        except CatalogFull as error:
            raise LimitExceeded(str(error)) from None
        except CatalogError as error:
            raise Unavailable(str(error), retry_after_ms=_RETRY_MS) from None
        raise Unavailable("other hosts changed the catalog at the same time; try again", retry_after_ms=_RETRY_MS)

    async def _check_all_hosts_read(self, document: Document) -> None:
        """Refuse a document of a format that a host of the cluster cannot read: it would go on by the former one.

        Raises `NotImplementedYet`, or `Unavailable` if the hosts are not known.
        """
        older = await self._find_older_hosts(format_of(document))
        if older:
            raise NotImplementedYet(
                f"policies of topics need hosts that keep them, and these are of an older version: {', '.join(older)}; "
                "upgrade or stop them first"
            )

    async def _confirm_all_hosts_read(self, document: Document) -> None:
        """Confirm that no older host has joined while the document was stored. A later one takes no shard over.

        Raises `UnknownOutcome`.
        """
        try:
            await self._check_all_hosts_read(document)
        except (NotImplementedYet, Unavailable) as error:
            raise UnknownOutcome(
                f"the change is stored, but a host of an older version may have joined meanwhile and not keep it: {error.message}"
            ) from None

    def _removed_namespaces(self, after: Document) -> list[str]:
        """Return the namespaces that a document lacks. Raises `InvalidArgument` if other hosts may hold items of them."""
        removed = [name for name in self._namespaces.document.namespaces if name not in after.namespaces]
        self._deletions.check_removable(removed)
        return removed

    @asynccontextmanager
    async def _closed_and_empty(self, names: Sequence[str], deadline: float) -> AsyncIterator[None]:
        """Keep these namespaces closed, after it is certain that they hold no items.

        Raises:
            InvalidArgument: one of them holds items.
            Unavailable, DeadlineExceeded: it is not known whether they do.
        """
        for name in names:
            self._namespaces.close(name)
        try:
            if names:
                await self._check_empty(names, deadline)
            yield
        finally:
            for name in names:
                self._namespaces.reopen(name)

    async def _check_empty(self, names: Sequence[str], deadline: float) -> None:
        shards = self._all_shards()
        try:
            async with asyncio.timeout_at(deadline):
                for shard in shards:
                    await shard.wait_for_queued_inserts()
                # The counts of a shard that another host took over say nothing.
                await self._confirm_ownership()
        except TimeoutError:
            raise DeadlineExceeded(
                "the time ran out before earlier enqueues were written; nothing was deleted; try again"
            ) from None
        except NotOwner as error:
            raise Unavailable(f"nothing was deleted: {error.message}; try again", retry_after_ms=_RETRY_MS) from None
        if any(shard.counts.is_lagging for shard in shards):
            raise Unavailable(
                "the items of this host's shards are still being counted; nothing was deleted; try again",
                retry_after_ms=_RETRY_MS,
            )
        for name in names:
            items = sum(shard.counts.item_count(name) for shard in shards)
            if items:
                raise InvalidArgument(
                    f"the namespace {name!r} holds {counted(items, 'item')}; ack or cancel what it holds first",
                    field="namespace_name",
                )

    async def _confirm_ownership(self) -> None:
        """Wait until it is certain that this host owned all its shards at the call. Raises `NotOwner`, `Unavailable`."""
        await asyncio.gather(*(shard.confirm_ownership() for shard in self._all_shards()))

    async def _confirm_nothing_was_accepted(self, deadline: float) -> None:
        """Confirm that no new owner of a shard served it before the catalog lacked the namespaces.

        An owner reads the catalog before it serves. Raises `UnknownOutcome`.
        """
        try:
            async with asyncio.timeout_at(deadline):
                await self._confirm_ownership()
        except (TimeoutError, NotOwner, Unavailable):
            raise UnknownOutcome(
                "the deletion is stored, but another host may have taken a shard over and accepted items before; "
                "list the namespaces, and create it again to see such items"
            ) from None

    def _serving_shard(self, shard_number: int) -> OwnedShard:
        shard = self._shards.get(shard_number)
        if shard is None or not shard.is_serving:
            raise Unavailable(
                f"shard {shard_number} is not served here now; try again", retry_after_ms=HANDOVER_RETRY_MS
            )
        return shard

    def _all_shards(self) -> list[OwnedShard]:
        """Return all shards of this host. Raises `Unavailable` if one is not served."""
        shards = [shard for shard in self._shards.values() if shard.is_serving]
        if len(shards) < len(self._statuses):
            raise Unavailable(
                "not every shard of this host is served now; try again, or see foqs shard list",
                retry_after_ms=_RETRY_MS,
            )
        return shards
