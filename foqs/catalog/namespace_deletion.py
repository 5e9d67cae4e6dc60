"""The deletion of a namespace from shards that several hosts serve.

Always true: the namespace is gone only when the owner of every shard has said,
in the document that marks it, that the shard holds nothing of it; and who said
so took in nothing more for it since. A mark that does not come to an end is
taken back, which is always safe. Knows nothing of how a document is stored.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from foqs.catalog import changes
from foqs.catalog.document import Document
from foqs.catalog.namespaces import Namespaces
from foqs.core.errors import DeadlineExceeded, FoqsError, InvalidArgument, NotOwner, Unavailable, UnknownOutcome
from foqs.shard.shard import Shard

log = logging.getLogger(__name__)

MARKED_S_MAX: Final = 60.0
"""A namespace takes nothing in while it is marked: for no longer than this, whoever has marked it."""

_RETRY_S: Final = 1.0
_INSPECTION_S_MAX: Final = 10.0
_MARGIN_S: Final = 1.0


class CatalogEditor(Protocol):
    """What stores changes of the document; see `admin.Administration`."""

    async def change(
        self, change: Callable[[Document], Document], deadline: float, *, is_known_empty: bool = False
    ) -> None: ...

    def add_change_listener(self, listener: Callable[[], None]) -> None: ...


@dataclass(slots=True, frozen=True)
class _ShardReport:
    """What a shard says of the namespaces that are being deleted; of those in neither it cannot be told now."""

    shard: int
    empty: Collection[str]
    held: Collection[str]


class NamespaceDeletions:
    """This host's part.

    Args:
        all_shards: all shards of every tier, here or elsewhere; none while that is not known. Hosts of another tier
            may have taken in items of a namespace whose tier an older version did not record.
    """

    def __init__(
        self,
        editor: CatalogEditor,
        namespaces: Namespaces,
        shards: Mapping[int, Shard],
        all_shards: Callable[[], Collection[int]],
    ) -> None:
        self._editor = editor
        self._namespaces = namespaces
        self._shards = shards
        self._all_shards = all_shards
        self._loop = asyncio.get_running_loop()
        self._marked_at_s: dict[str, float] = {}
        """Since when each is known to be marked."""
        self._change_event = asyncio.Event()
        editor.add_change_listener(self._on_document_changed)

    def _on_document_changed(self) -> None:
        now_s = self._loop.time()
        self._marked_at_s = {
            name: self._marked_at_s.get(name, now_s) for name in self._namespaces.names_being_deleted()
        }
        changed, self._change_event = self._change_event, asyncio.Event()
        changed.set()

    async def run(self) -> None:
        """Looks into the shards of this host for namespaces that are marked, until it is cancelled."""
        while True:
            changed = self._change_event
            if self._marked_at_s:
                try:
                    await self._store_reports(list(self._marked_at_s), self._loop.time() + _INSPECTION_S_MAX)
                except FoqsError as error:
                    log.warning("a namespace that is being deleted: %s", error.message)
                await asyncio.sleep(_RETRY_S)
            else:
                await changed.wait()

    async def delete(self, name: str, deadline: float) -> None:
        """Marks a namespace, and waits until it is gone.

        Raises:
            InvalidArgument: it holds items.
            DeadlineExceeded: not every shard was looked into in time; it is there as before.
            UnknownOutcome: the mark could not be taken back; it may still be deleted.
        """
        await self._editor.change(lambda before: changes.start_deletion(before, name), deadline)
        left_s = deadline - self._loop.time()
        try:
            async with asyncio.timeout(left_s - min(_MARGIN_S, left_s / 4)):
                while name in self._namespaces.names_being_deleted():
                    await self._change_event.wait()
        except TimeoutError:
            await self._unmark(name, deadline)
            if name in self._namespaces.document.namespaces:
                raise DeadlineExceeded(
                    "not every shard was looked into in time; see that all are served (foqs doctor) and try again"
                ) from None
        if name in self._namespaces.document.namespaces:
            raise InvalidArgument(
                f"the namespace {name!r} holds items; have them acked or cancelled first", field="namespace_name"
            )

    # ----------------------------------------------------------------- inside

    async def _unmark(self, name: str, deadline: float) -> None:
        """Takes a mark back. Raises `UnknownOutcome`: while it stands, other hosts may go on with the deletion."""
        try:
            await self._editor.change(lambda before: changes.cancel_deletion(before, name), deadline)
        except FoqsError as error:
            raise UnknownOutcome(
                f"the namespace {name!r} is marked as being deleted, and that could not be taken back: {error.message}; "
                "it may be deleted or not, look at it"
            ) from None

    async def _store_reports(self, names: list[str], deadline: float) -> None:
        """Has it stored what the shards of this host say of these namespaces."""
        for name in names:
            self._namespaces.close(name)
        closed = True
        try:
            looks = await _inspect_shards(self._shards.values(), names, deadline)
            over = [name for name in names if self._loop.time() - self._marked_at_s.get(name, math.inf) > MARKED_S_MAX]

            def change(before: Document) -> Document:
                # What was found holds for as long as nothing is taken in.
                return _with_reports(before, names, looks, over, self._all_shards()) if closed else before

            await self._editor.change(change, deadline, is_known_empty=True)
        finally:
            closed = False
            for name in names:
                self._namespaces.reopen(name)


def _with_reports(
    before: Document,
    names: Iterable[str],
    reports: Iterable[_ShardReport],
    overdue: Collection[str],
    all_shards: Collection[int],
) -> Document:
    after = before
    for name in names:
        if name in overdue or any(name in look.held for look in reports):
            after = changes.cancel_deletion(after, name)
        else:
            empty = [look.shard for look in reports if name in look.empty]
            after = changes.record_empty_shards(after, name, empty, all_shards)
    return after if after is before else Document(before.version + 1, after.namespaces, after.slots)


async def _inspect_shards(shards: Iterable[Shard], names: Collection[str], deadline: float) -> list[_ShardReport]:
    """What the shards of this host hold of namespaces that take nothing in."""
    looks = []
    for shard in list(shards):
        try:
            async with asyncio.timeout_at(deadline):
                await shard.wait_for_queued_inserts()
                held = [name for name in names if shard.counts.item_count(name) > 0]
                empty = [] if shard.counts.is_lagging else [name for name in names if name not in held]
                # It was ours until now, and whoever takes it over from now on reads the marks first.
                await shard.confirm_ownership()
        except (TimeoutError, NotOwner, Unavailable):
            continue
        looks.append(_ShardReport(shard.number, empty, held))
    return looks
