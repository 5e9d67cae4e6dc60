"""The calls that change and show what is configured: namespaces, grants, pauses, the whole document.

Always true: changes of this host happen one after the other; each is stored
before it holds here, and holds here before its caller is told. What others
store holds here as soon as the catalog says so. A change that has begun goes
on when its caller leaves. A namespace is deleted only when it is certain that
it holds nothing. Speaks no Thrift.
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
from foqs.catalog.document import EMPTY_DOCUMENT, Document, MalformedDocument, Namespace, Permission, parse, render
from foqs.catalog.namespace_deletion import NamespaceDeletions
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
from foqs.core.errors import (
    HANDOVER_RETRY_MS,
    DeadlineExceeded,
    FoqsError,
    InvalidArgument,
    LimitExceeded,
    Unavailable,
    UnknownOutcome,
)
from foqs.core.items.idempotency_keys import INCARNATION_MAX
from foqs.core.items.item import TopicName
from foqs.options.rpc_options import CallOptions
from foqs.shard.host_shards import HostShards
from foqs.shard.shard import Shard

log = logging.getLogger(__name__)

FIRST_NAMESPACE: Final = "default"
"""The namespace of a catalog that is new."""

_ATTEMPTS_MAX: Final = 10
"""So often a change is made anew because another came between."""

_RETRY_MS: Final = 1_000

DocumentChange = Callable[[Document], Document]


@dataclass(slots=True, frozen=True)
class UsageReport:
    """What a namespace holds in shards of this host, and what this host took in of it; `payload_bytes` of payload."""

    items: int
    payload_bytes: int
    topics: Collection[str]
    enqueues_last_minute: int


class EnqueueCounts(Protocol):
    """What each namespace has enqueued lately at this host."""

    def enqueued_last_minute(self, namespace: str) -> int:
        """About how many items were taken in the last minute."""
        ...

    def forget(self, namespaces: Iterable[str]) -> None:
        """These were deleted; one of the same name begins anew."""
        ...


class Administration:
    """See `api` for how errors mean; every method raises `FoqsError`.

    Args:
        item_bytes_max: payload and metadata of an item that a call can carry.
        on_topics_resumed: told topics that hand out again.
    """

    def __init__(
        self,
        catalog: Catalog,
        namespaces: Namespaces,
        shards: HostShards,
        limits: CallOptions,
        enqueue_counts: EnqueueCounts,
        item_bytes_max: int,
        on_topics_resumed: Callable[[Iterable[TopicName]], None],
        rng: Random,
    ) -> None:
        self._catalog = catalog
        self._namespaces = namespaces
        self._shards = shards.served
        self._statuses = shards.statuses
        self._limits = limits
        self._enqueue_counts = enqueue_counts
        self._item_bytes_max = item_bytes_max
        self._on_topics_resumed = on_topics_resumed
        self._rng = rng
        self._deletions: NamespaceDeletions | None = None
        self._change_lock = asyncio.Lock()
        """Held by the one change of this host that is under way."""
        self._running_changes: set[asyncio.Task[Document]] = set()
        self._listeners: list[Callable[[], None]] = []

    # -------------------------------------------------------------- life cycle

    async def open(self) -> None:
        """Takes in what is stored; a new catalog gets its first namespace.

        Waits for who keeps it, as long as it takes. Raises `CatalogError`: what is stored cannot be used.
        """
        document, trouble = EMPTY_DOCUMENT, ""
        while document == EMPTY_DOCUMENT:
            try:
                document = await self._catalog.load()
                if document == EMPTY_DOCUMENT:
                    first = changes.create(EMPTY_DOCUMENT, FIRST_NAMESPACE, None, {})
                    await self._catalog.replace(first)
                    document = first
            except CatalogConflict:
                continue  # another host was first
            except (CatalogUnreachable, CatalogUnknownOutcome) as error:
                if str(error) != trouble:
                    trouble = str(error)
                    log.warning("waiting for the catalog: %s", trouble)
                await asyncio.sleep(_RETRY_MS / 1_000)
        self._apply(document)
        for name, namespace in document.namespaces.items():
            try:
                self._check_settings(namespace)
            except FoqsError as error:
                log.warning("namespace %r does not fit this host: %s", name, error)

    async def refresh(self) -> None:
        """Takes in what is stored now; where that is nothing, what was read last holds. Raises `CatalogError`."""
        async with self._change_lock:
            document = await self._catalog.load()
            if document != EMPTY_DOCUMENT:
                self._apply(document)

    def add_change_listener(self, listener: Callable[[], None]) -> None:
        """Has it called each time another document holds here."""
        self._listeners.append(listener)

    async def watch(self) -> None:
        """Takes in what others store, until it is cancelled. What cannot be read changes nothing."""
        trouble = ""
        while True:
            await self._catalog.wait_for_change(self._namespaces.document.version)
            try:
                await self._load_and_apply(self._load_not_empty)
                trouble = ""
            except CatalogError as error:
                if str(error) != trouble:
                    trouble = str(error)
                    log.error("the catalog stays as it was: %s", error)  # noqa: TRY400 - the text says all
            except Exception:  # whatever it is, later changes must still be seen
                trouble = "unforeseen"
                log.exception("taking in the catalog failed")
            if trouble:
                await asyncio.sleep(_RETRY_MS / 1_000)

    async def _load_and_apply(self, load: Callable[[], Awaitable[Document]]) -> Document:
        """Has hold here what is stored, and returns it. Raises `CatalogError`.

        It is read again where something else came to hold meanwhile, so that no older one comes after a newer.
        """
        while True:
            held = self._namespaces.document
            document = await load()
            if self._namespaces.document is held:
                if document != EMPTY_DOCUMENT:
                    self._apply(document)
                return document

    async def _load_not_empty(self) -> Document:
        """What is stored, which is not nothing. Raises `CatalogFailed`."""
        document = await self._catalog.load()
        if document == EMPTY_DOCUMENT and self._namespaces.document.version:
            raise CatalogFailed("it is empty and was not before; import what was exported: foqs config import FILE")
        return document

    def _apply(self, document: Document) -> None:
        if document != self._namespaces.document:
            log.info("catalog version %d holds, with %d namespaces", document.version, len(document.namespaces))
            before, after = self._namespaces.document.namespaces, document.namespaces
            resumed = self._namespaces.apply(document)
            self._enqueue_counts.forget(
                name for name, own in before.items() if name not in after or after[name].incarnation != own.incarnation
            )
            if resumed:
                self._on_topics_resumed(resumed)
            for listener in self._listeners:
                listener()

    # ----------------------------------------------------------------- looking

    def document(self) -> Document:
        """All of it. Raises `Unavailable`."""
        document = self._namespaces.document
        if not document.version:
            raise Unavailable("the host has not read its namespaces yet; try again", retry_after_ms=_RETRY_MS)
        return document

    def namespace(self, name: str) -> Namespace:
        """As it was configured."""
        return changes.find_namespace(self.document(), name)

    def settings(self, namespace: Namespace) -> Mapping[str, int]:
        """What holds for a namespace, the host's defaults included."""
        default = self._namespaces.default_settings
        return {name: getattr(default, name) for name in SETTING_RANGES} | dict(namespace.settings)

    def usage(self, name: str, shard_numbers: Collection[int] | None = None) -> UsageReport:
        """What a namespace holds, as far as it is counted, in these shards or in all of this host. Raises `Unavailable`."""
        self.namespace(name)
        shards = (
            self._all_shards()
            if shard_numbers is None
            else [self._serving_shard(number) for number in sorted(set(shard_numbers))]
        )
        topics = {topic for shard in shards for topic in shard.counts.topic_names(name)}
        held = [shard.memory.usage.lower_bound(name) for shard in shards]
        items, size = sum(items for items, _ in held), sum(size for _, size in held)
        return UsageReport(items, size, topics, self._enqueue_counts.enqueued_last_minute(name))

    def export(self) -> str:
        """All of it, as JSON that `restore` reads."""
        return render(self.document())

    # ---------------------------------------------------------------- changing

    async def create(self, name: str, tier: str | None, settings: Mapping[str, int], deadline: float) -> Namespace:
        """A namespace more; doing so again with the same settings changes nothing."""
        fresh, own = self._new_incarnation(), tier or self._namespaces.tier
        return await self._change_namespace(
            name, lambda before: changes.create(before, name, own, settings, incarnation=fresh), deadline
        )

    async def update(self, name: str, tier: str | None, settings: Mapping[str, int], deadline: float) -> Namespace:
        """Other settings; those not given stay as they are."""
        return await self._change_namespace(name, lambda before: changes.update(before, name, tier, settings), deadline)

    def use_cluster_deletion(self, deletions: NamespaceDeletions) -> None:
        """There are other hosts, whose shards may hold what a namespace holds."""
        self._deletions = deletions

    async def change(self, change: DocumentChange, deadline: float, *, is_known_empty: bool = False) -> None:
        """Any change; one that takes a namespace away is `is_known_empty`: every shard is known to hold nothing of it."""
        await self._change(change, deadline, is_known_empty=is_known_empty)

    async def _change_namespace(self, name: str, change: DocumentChange, deadline: float) -> Namespace:
        def checked(before: Document) -> Document:
            after = change(before)
            self._check_settings(after.namespaces[name])
            return after

        return (await self._change(checked, deadline)).namespaces[name]

    async def delete(self, name: str, deadline: float) -> None:
        """One namespace less. Raises `InvalidArgument` while it holds items."""
        self.namespace(name)
        if self._deletions is not None:
            await self._deletions.delete(name, deadline)
            return
        await self._change(lambda before: changes.delete(before, name), deadline)

    async def grant(self, name: str, principal: str, permissions: frozenset[Permission], deadline: float) -> None:
        """A principal has these permissions and no others; none revokes."""
        await self._change(lambda before: changes.grant(before, name, principal, permissions), deadline)

    async def pause(self, name: str, topic: str, deadline: float, *, paused: bool) -> None:
        """A topic hands nothing out, or does so again."""
        await self._change(lambda before: changes.pause(before, name, topic, paused=paused), deadline)

    async def restore(self, text: str, deadline: float) -> None:
        """All that an export holds, in place of what there is. A namespace that it lacks must hold no items."""
        try:
            given = parse(text)
        except MalformedDocument as error:
            raise InvalidArgument(f"{error}; mend that place", field="json") from None
        for name, namespace in given.namespaces.items():
            try:
                self._check_settings(namespace)
            except FoqsError as error:
                raise InvalidArgument(f"namespaces.{name}.{error.field}: {error.message}", field="json") from None
        fresh = self._new_incarnation()
        await self._change(lambda before: changes.restore(before, given, incarnation=fresh), deadline, from_empty=True)

    def _new_incarnation(self) -> int:
        """One that no namespace had before, not even in a catalog that was lost."""
        return self._rng.randint(1, INCARNATION_MAX)

    def _check_settings(self, namespace: Namespace) -> None:
        """Refuses settings that contradict one another, or the host's own. Raises `InvalidArgument`."""
        whole = self.settings(namespace)
        check_consistent(whole)
        if whole["payload_bytes_max"] + whole["metadata_bytes_max"] > self._item_bytes_max:
            raise InvalidArgument(
                f"the host's frames carry items of at most {self._item_bytes_max} bytes; raise wire.frame_bytes_max",
                field="settings.payload_bytes_max",
            )
        if namespace.settings.get("key_window_ms", self._limits.timeout_ms_max + 1) <= self._limits.timeout_ms_max:
            raise InvalidArgument(
                f"a call may last {self._limits.timeout_ms_max} ms, and tried again later it could enqueue twice; "
                "give more than that",
                field="settings.key_window_ms",
            )

    # ----------------------------------------------------------- one at a time

    async def _change(
        self, change: DocumentChange, deadline: float, *, from_empty: bool = False, is_known_empty: bool = False
    ) -> Document:
        """Stores what `change` makes of the document, and has it hold here."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._change_lock.acquire()
        except TimeoutError:
            raise DeadlineExceeded("the time ran out while other changes were made; nothing was changed") from None
        task = asyncio.ensure_future(
            self._change_now(change, deadline, from_empty=from_empty, is_known_empty=is_known_empty)
        )
        self._running_changes.add(task)
        task.add_done_callback(self._on_change_ended)
        loop = asyncio.get_running_loop()
        done, _ = await asyncio.wait((task,), timeout=max(0.0, deadline - loop.time()))
        if not done:
            raise UnknownOutcome("the change was not stored by the deadline; it may still be")
        return task.result()

    def _on_change_ended(self, task: asyncio.Task[Document]) -> None:
        self._change_lock.release()
        self._running_changes.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may have left

    async def _change_now(
        self, change: DocumentChange, deadline: float, *, from_empty: bool, is_known_empty: bool
    ) -> Document:
        try:
            for _ in range(_ATTEMPTS_MAX):
                before = await self._load_and_apply(self._catalog.load if from_empty else self._load_not_empty)
                after = change(before)
                gone = self._removed_namespaces(after) if not is_known_empty else []
                async with self._closed_and_empty(gone, deadline):
                    if after is not before:
                        held = self._namespaces.document
                        try:
                            await self._catalog.replace(after, before)
                        except CatalogConflict:
                            continue
                        except CatalogUnknownOutcome:
                            # What was closed must not be opened for a document that may be gone.
                            with suppress(CatalogError):  # nobody answers: what is stored is still not known
                                await self._load_and_apply(self._catalog.load)
                            raise
                        if self._namespaces.document is held:
                            self._apply(after)  # else what holds is as new, or newer
                return after
        except CatalogUnknownOutcome as error:
            raise UnknownOutcome(f"{error}; the change may hold or not, look at it") from None
        except CatalogFull as error:
            raise LimitExceeded(str(error)) from None
        except CatalogError as error:
            raise Unavailable(str(error), retry_after_ms=_RETRY_MS) from None
        raise Unavailable("others change the catalog all the time; try again", retry_after_ms=_RETRY_MS)

    def _removed_namespaces(self, after: Document) -> list[str]:
        """The namespaces that a document lacks. Raises `InvalidArgument`: other hosts would have to be asked."""
        gone = [name for name in self._namespaces.document.namespaces if name not in after.namespaces]
        if gone and self._deletions is not None:
            raise InvalidArgument(
                f"the document lacks the namespace {gone[0]!r}, and other hosts may hold items of it; "
                f"delete it first: foqs namespace delete {gone[0]}",
                field="json",
            )
        return gone

    @asynccontextmanager
    async def _closed_and_empty(self, names: Sequence[str], deadline: float) -> AsyncIterator[None]:
        """Meanwhile these namespaces take in nothing, and hold nothing.

        Raises:
            InvalidArgument: one of them holds items.
            Unavailable, DeadlineExceeded: it cannot be told.
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
        except TimeoutError:
            raise DeadlineExceeded("what was enqueued before was not written in time; try again") from None
        if any(shard.counts.is_lagging for shard in shards):
            raise Unavailable("the items are still being counted; try again", retry_after_ms=_RETRY_MS)
        for name in names:
            items = sum(shard.counts.item_count(name) for shard in shards)
            if items:
                raise InvalidArgument(
                    f"the namespace {name!r} holds {items} items; have them acked or cancelled first",
                    field="namespace_name",
                )

    def _serving_shard(self, shard_number: int) -> Shard:
        shard = self._shards.get(shard_number)
        if shard is None or not shard.is_serving:
            raise Unavailable(
                f"shard {shard_number} is not being served here now; try again", retry_after_ms=HANDOVER_RETRY_MS
            )
        return shard

    def _all_shards(self) -> list[Shard]:
        """Every shard of this host. Raises `Unavailable`."""
        shards = [shard for shard in self._shards.values() if shard.is_serving]
        if len(shards) < len(self._statuses):
            raise Unavailable("not every shard is being served now; try again", retry_after_ms=_RETRY_MS)
        return shards
