"""The deletion of a namespace, by a host alone and in a cluster, whose hosts all may hold items of it.

Holds the port `Deletions`, `DirectDeletions` and `ClusterDeletions`. A host of a cluster marks the namespace in the catalog's document; then the owner of each
shard records there that its shard holds no items of it. Always true: the
namespace is deleted only after all owners did so, and since then they accept
none. A mark that is too old is removed, which is always safe. Knows nothing of
how the document is stored.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from foqs.catalog import changes
from foqs.catalog.document import Document
from foqs.catalog.namespaces import Namespaces
from foqs.shard.shard import OwnedShard
from foqs_contract.errors import DeadlineExceeded, FoqsError, InvalidArgument, NotOwner, Unavailable, UnknownOutcome

log = logging.getLogger(__name__)

MARKED_S_MAX: Final = 60.0
"""How long a namespace may be marked. It accepts no items meanwhile."""

_RETRY_S: Final = 1.0
_INSPECTION_S_MAX: Final = 10.0
_MARGIN_S: Final = 1.0


class CatalogEditor(Protocol):
    """Stores changes of the document; see `Administration`."""

    async def change(
        self, change: Callable[[Document], Document], deadline: float, *, is_known_empty: bool = False
    ) -> None: ...


class Deletions(Protocol):
    """The deletions of namespaces, as this host takes part in them."""

    def check_removable(self, names: Sequence[str]) -> None:
        """Check that a document may leave out these namespaces. Raises `InvalidArgument` if other hosts may hold items of them."""
        ...

    async def delete(self, editor: CatalogEditor, name: str, deadline: float) -> None:
        """Delete a namespace. Raises `InvalidArgument` if it holds items."""
        ...

    def on_document_changed(self, changed_names: Collection[str]) -> None:
        """Note which namespaces the new document marks as being deleted."""
        ...

    async def run(self, editor: CatalogEditor) -> None:
        """Take part in the deletions of other hosts, until cancelled."""
        ...


class DirectDeletions:
    """The deletions of a host that owns all shards: its own counts are enough."""

    def check_removable(self, names: Sequence[str]) -> None:
        """Do nothing: no other host holds items."""

    async def delete(self, editor: CatalogEditor, name: str, deadline: float) -> None:
        await editor.change(lambda before: changes.delete(before, name), deadline)

    def on_document_changed(self, changed_names: Collection[str]) -> None:
        """Do nothing: nothing is marked."""

    async def run(self, editor: CatalogEditor) -> None:
        """Return at once: no other host deletes."""


@dataclass(slots=True, frozen=True)
class _ShardReport:
    """The marked namespaces of which a shard holds no items, and those of which it holds some. Others are not counted yet."""

    shard: int
    empty: Collection[str]
    held: Collection[str]


class ClusterDeletions:
    """This host's part in the deletion of namespaces of a cluster.

    Args:
        all_shards: returns the shards of all tiers; none while they are not known. Hosts of another tier may hold
            items of a namespace whose tier an older version did not record.
    """

    def __init__(
        self,
        namespaces: Namespaces,
        shards: Mapping[int, OwnedShard],
        all_shards: Callable[[], Collection[int]],
    ) -> None:
        self._namespaces = namespaces
        self._shards = shards
        self._all_shards = all_shards
        self._loop = asyncio.get_running_loop()
        self._marked_at_s: dict[str, float] = {}
        """When this host first saw the mark of each marked namespace."""
        self._change_event = asyncio.Event()

    def check_removable(self, names: Sequence[str]) -> None:
        if names:
            raise InvalidArgument(
                f"the document lacks the namespace {names[0]!r}, and other hosts may hold items of it; "
                f"delete it first: foqs namespace delete {names[0]}",
                field="json",
            )

    def on_document_changed(self, changed_names: Collection[str]) -> None:
        now_s = self._loop.time()
        self._marked_at_s = {
            name: self._marked_at_s.get(name, now_s) for name in self._namespaces.names_being_deleted()
        }
        changed, self._change_event = self._change_event, asyncio.Event()
        changed.set()

    async def run(self, editor: CatalogEditor) -> None:
        """Report the shards of this host for marked namespaces, until cancelled."""
        while True:
            changed = self._change_event
            if self._marked_at_s:
                try:
                    await self._store_reports(editor, list(self._marked_at_s), self._loop.time() + _INSPECTION_S_MAX)
                except FoqsError as error:
                    log.warning(
                        "the deletion of %s waits, because this host cannot report whether its shards are empty; "
                        "trying again: %s",
                        ", ".join(map(repr, self._marked_at_s)),
                        error.message,
                    )
                await asyncio.sleep(_RETRY_S)
            else:
                await changed.wait()

    async def delete(self, editor: CatalogEditor, name: str, deadline: float) -> None:
        """Mark a namespace, and wait until it is deleted.

        Raises:
            InvalidArgument: it holds items.
            DeadlineExceeded: not every shard reported in time; the namespace is as before.
            UnknownOutcome: the mark could not be removed; the namespace may still be deleted.
        """
        await editor.change(lambda before: changes.start_deletion(before, name), deadline)
        left_s = deadline - self._loop.time()
        try:
            async with asyncio.timeout(left_s - min(_MARGIN_S, left_s / 4)):
                while name in self._namespaces.names_being_deleted():
                    await self._change_event.wait()
        except TimeoutError:
            await self._unmark(editor, name, deadline)
            if name in self._namespaces.document.namespaces:
                raise DeadlineExceeded(
                    f"the namespace {name!r} is not deleted: not every shard was checked in time; check that all are "
                    "served (foqs doctor), and try again"
                ) from None
        if name in self._namespaces.document.namespaces:
            raise InvalidArgument(
                f"the namespace {name!r} holds items; ack or cancel them first", field="namespace_name"
            )

    # ----------------------------------------------------------------- inside

    async def _unmark(self, editor: CatalogEditor, name: str, deadline: float) -> None:
        """Remove a mark. Raises `UnknownOutcome`: as long as the mark exists, other hosts may go on with the deletion."""
        try:
            await editor.change(lambda before: changes.cancel_deletion(before, name), deadline)
        except FoqsError as error:
            raise UnknownOutcome(
                f"the namespace {name!r} is marked as being deleted, and the mark could not be removed: {error.message}; "
                "check whether the namespace still exists"
            ) from None

    async def _store_reports(self, editor: CatalogEditor, names: list[str], deadline: float) -> None:
        """Inspect the shards of this host for these namespaces, and store the reports."""
        for name in names:
            self._namespaces.close(name)
        is_closed = True
        try:
            reports = await _inspect_shards(self._shards.values(), names, deadline)
            now_s = self._loop.time()
            overdue = [name for name in names if now_s - self._marked_at_s.get(name, math.inf) > MARKED_S_MAX]

            def change(before: Document) -> Document:
                # The reports are valid only while the namespaces are closed.
                return _with_reports(before, names, reports, overdue, self._all_shards()) if is_closed else before

            await editor.change(change, deadline, is_known_empty=True)
        finally:
            is_closed = False
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
        if name in overdue or any(name in report.held for report in reports):
            after = changes.cancel_deletion(after, name)
        else:
            empty = [report.shard for report in reports if name in report.empty]
            after = changes.record_empty_shards(after, name, empty, all_shards)
    return changes.in_one_version(before, after)


async def _inspect_shards(shards: Iterable[OwnedShard], names: Collection[str], deadline: float) -> list[_ShardReport]:
    """Return a report of each of these shards on the closed namespaces. A shard that cannot be inspected has none."""
    reports = []
    for shard in list(shards):
        try:
            async with asyncio.timeout_at(deadline):
                await shard.wait_for_queued_inserts()
                held = [name for name in names if shard.counts.item_count(name) > 0]
                empty = [] if shard.counts.is_lagging else [name for name in names if name not in held]
                # A host that takes the shard over after this reads the marks before it serves.
                await shard.confirm_ownership()
        except (TimeoutError, NotOwner, Unavailable):
            continue
        reports.append(_ShardReport(shard.number, empty, held))
    return reports
