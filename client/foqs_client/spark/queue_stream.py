"""Takes items out of topics for a stream, batch by batch, and acks them when their batch is done.

Holds `Offset` and `QueueStream`. Always true: an offset names a complete file of staged
rows; nothing is taken before the items of the batch before it are acked, gone or
superseded. See docs/design/spark-source.md for each point at which the driver may die.
Does not know PySpark.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from random import Random
from typing import Any, Final, TypeVar
from uuid import uuid4

from foqs_client.errors import FoqsError, StaleLease
from foqs_client.spark.item_reader import BACKOFF_S_MAX, BACKOFF_S_MIN, read_refusal, retried
from foqs_client.spark.item_view_columns import delivery_values
from foqs_client.spark.job_error import SourceError
from foqs_client.spark.lease_renewal import IDS_PER_CALL, StreamLeaseRenewal
from foqs_client.spark.source_options import StreamSourceOptions
from foqs_client.spark.staging import Lease, StagedWriter, Staging, StagingOwner
from foqs_client.sync_client import SyncClient
from foqs_client.types import Delivery, ItemFilter, Outcome
from foqs_contract.backoff import Backoff
from foqs_contract.plurals import counted

R = TypeVar("R")

TAKE_ITEMS: Final = 500
"""Limit of the items of one dequeue."""
WAIT_MS: Final = 1_000
"""How long the first dequeue of a batch waits for an item."""
PARTITIONS_MAX: Final = 8
"""Limit of the partitions of a batch. A batch that is run again has the same ones."""
_log: Final = logging.getLogger("foqs_client.spark")


@dataclass(slots=True, frozen=True)
class Offset:
    """The end of a batch, as Spark keeps it in the checkpoint.

    Attributes:
        stream: the name of the stream; empty before its first batch.
        batch: the number of the batch; 0 before the first one.
        file: the name of the file of the staged rows.
        rows: the number of the rows.
    """

    stream: str = ""
    batch: int = 0
    file: str = ""
    rows: int = 0

    @classmethod
    def parse(cls, found: Any) -> Offset:
        """Return an offset of a checkpoint. Raises SourceError if it is one of another source."""
        if not isinstance(found, dict) or found.keys() != {each.name for each in fields(cls)}:
            raise SourceError(
                "the checkpoint is of a query that reads another source: start each query with a checkpoint of its own"
            )
        return cls(**found)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class QueueStream:
    """The driver's side of a stream.

    Args:
        options: the options of the stream.
        client: a client of the namespace.
        staging: the staging location.
        renewal: the task that extends the leases of the staged items.
    """

    def __init__(
        self, options: StreamSourceOptions, client: SyncClient, staging: Staging, renewal: StreamLeaseRenewal
    ) -> None:
        self._options = options
        self._client = client
        self._staging = staging
        self._renewal = renewal
        self._driver = uuid4().hex
        self._owner: StagingOwner | None = None
        """The owner that this process has written into the location; None before."""
        self._settled = ""
        """The last file whose items this process has acked: Spark asks for it twice."""

    def check(self) -> None:
        """Check that the hosts serve this stream. Raises SourceError."""
        settings = self._retried(self._client.get_namespace)
        lease_ms_max = settings.lease_ms_max
        if lease_ms_max is not None and lease_ms_max < self._options.lease_ms:
            raise SourceError(
                f"the option lease_ms is {self._options.lease_ms}, and the namespace {settings.name!r} allows leases of "
                f"at most {lease_ms_max} ms; set lease_ms to that or less"
            )

    def count_ready(self) -> int:
        """Return the number of READY items of the topics that are not paused. Raises SourceError."""
        topics = [topic for topic in self._options.topics if not self._is_paused(topic)]
        if not topics:
            return 0
        only = ItemFilter(topics=topics, states=["ready"])
        return self._retried(lambda timeout_ms: self._client.count(only, timeout_ms=timeout_ms)).items

    def lease_batch(self, start: Offset, items_max: int, *, until_none_is_ready: bool) -> Offset:
        """Settle `start`, and return the offset of a new batch, or `start` if no item is ready.

        Args:
            items_max: the maximum number of items of the batch.
            until_none_is_ready: an empty reply is believed only if a count says so, too.

        If it fails, the items that it has taken are released.

        Raises:
            SourceError: the batch of `start` is not settled, or a host refuses the stream.
        """
        stream = self._claim(start)
        self.settle(start)
        self._release_above(start.batch)
        if items_max <= 0 or not (first := self._first_items(items_max, until_none_is_ready)):
            return start
        leases = [(each.id, each.token) for each in first]
        try:
            writer = self._stage_batch(start.batch + 1, first, leases, items_max)
        except BaseException:
            self._release_in_pages(leases)
            raise
        return Offset(stream, start.batch + 1, writer.name, writer.rows)

    def _stage_batch(self, batch: int, first: Sequence[Delivery], leases: list[Lease], items_max: int) -> StagedWriter:
        """Write the items of a batch to a file, and dequeue more of them; their leases are added to `leases`."""
        writer = self._staging.writer(batch)
        taken = first
        try:
            while taken:
                self._stage(writer, taken)
                room = items_max - writer.rows
                taken = self._dequeue(min(TAKE_ITEMS, room), 0) if room > 0 else []
                leases += [(each.id, each.token) for each in taken]
            self._staging.complete(writer)
        except BaseException:
            self._renewal.drop(writer.name)
            raise
        return writer

    def settle(self, end: Offset) -> None:
        """Ack the items of the batch that ended here, and delete older files.

        Raises:
            SourceError: an item may still be leased to this stream after `timeout_ms`, or the file is missing.
        """
        if end.file == self._settled:
            return
        self._renewal.drop(end.file)
        leases = self._staging.leases(end.file)
        stale = sum(self._ack(leases[i : i + IDS_PER_CALL]) for i in range(0, len(leases), IDS_PER_CALL))
        if stale:
            _log.warning(
                "batch %d: %s delivered to another consumer, because the lease had ended",
                end.batch,
                counted(stale, "item was", "items were"),
            )
        for file in self._staging.staged_files():
            if file.batch < end.batch:
                self._staging.delete(file.name)
        self._settled = end.file

    def partitions(self, end: Offset) -> list[list[int]]:
        """Return the row groups of each partition, and hold the leases of the batch. Raises SourceError."""
        self._claim(end)
        groups = self._staging.group_count(end.file)
        self._renewal.add(end.file, self._staging.leases(end.file))
        count = min(groups, PARTITIONS_MAX)
        return [list(range(number, groups, count)) for number in range(count)]

    # ---------------------------------------------------------------- the location

    def _claim(self, offset: Offset) -> str:
        """Take the staging location for this process, and return the name of the stream.

        A stream that has no batch yet is new, and takes the location over.
        Raises SourceError if the location belongs to another stream or driver.
        """
        owner = self._staging.read_owner()
        if self._owner is None:
            if offset.stream and (owner is None or owner.stream != offset.stream):
                raise self._foreign_location(owner)
            self._owner = StagingOwner(offset.stream or uuid4().hex, self._driver)
            self._staging.write_owner(self._owner)
        elif owner != self._owner or offset.stream not in ("", owner.stream):
            raise self._foreign_location(owner)
        return self._owner.stream

    def _foreign_location(self, owner: StagingOwner | None) -> SourceError:
        found = "has no stream" if owner is None else "belongs to another query, or to another driver of this one"
        return SourceError(
            f"the staging_location {self._staging.location} {found}: start each query with its own checkpoint and its "
            "own staging_location, the same ones each time"
        )

    def _release_above(self, batch: int) -> None:
        """Release the items of files that no offset names, and delete the files. Raises SourceError."""
        files = [file for file in self._staging.staged_files() if file.batch > batch]
        # Read after the files: a later driver writes its name before its first file, so none of these is its own.
        if files and (owner := self._staging.read_owner()) != self._owner:
            raise self._foreign_location(owner)
        for file in files:
            self._renewal.drop(file.name)
            self._release_in_pages(self._staging.leases_if_complete(file.name))
            self._staging.delete(file.name)

    def _release_in_pages(self, leases: Sequence[Lease]) -> None:
        for start in range(0, len(leases), IDS_PER_CALL):
            self._release(leases[start : start + IDS_PER_CALL])

    def _release(self, leases: Sequence[Lease]) -> None:
        """Release items; those that cannot be released come back when their leases end."""
        try:
            self._client.release(leases, timeout_ms=self._options.timeout_ms)
        except FoqsError as error:
            _log.warning(
                "%s of an unfinished batch could not be released; each comes back when its lease ends: %s",
                counted(len(leases), "item"),
                error,
            )

    # ------------------------------------------------------------------- the items

    def _first_items(self, items_max: int, until_none_is_ready: bool) -> list[Delivery]:
        """Return the first items of a batch; none if there are none."""
        deadline = time.monotonic() + self._options.timeout_ms / 1_000
        while True:
            taken = self._dequeue(min(TAKE_ITEMS, items_max), WAIT_MS)
            if taken or not until_none_is_ready or time.monotonic() > deadline or not self.count_ready():
                return taken

    def _dequeue(self, items: int, wait_ms: int) -> list[Delivery]:
        wants = dict.fromkeys(self._options.topics, items)
        lease_ms = self._options.lease_ms
        return self._retried(
            lambda timeout_ms: self._client.dequeue(
                wants, wait_ms=wait_ms, lease_ms=lease_ms, items_max=items, timeout_ms=timeout_ms
            )
        )

    def _stage(self, writer: StagedWriter, taken: Sequence[Delivery]) -> None:
        self._renewal.add(writer.name, [(each.id, each.token) for each in taken])
        writer.write(delivery_values(taken, int(time.time() * 1_000)), [each.token for each in taken])

    def _ack(self, leases: Sequence[Lease]) -> int:
        """Ack items until each is acked, gone or superseded. Return how many were superseded. Raises SourceError."""
        backoff = Backoff(BACKOFF_S_MIN, BACKOFF_S_MAX, Random(), (1.0, 1.25))
        deadline = time.monotonic() + self._options.timeout_ms / 1_000
        stale, attempts = 0, 0
        while leases:
            outcomes = self._outcomes(leases, deadline)
            failed = [
                (lease, outcome.error)
                for lease, outcome in zip(leases, outcomes, strict=True)
                if outcome.error is not None
            ]
            stale += sum(isinstance(error, StaleLease) for _, error in failed)
            failed = [(lease, error) for lease, error in failed if not isinstance(error, StaleLease)]
            for _, error in failed:
                if not error.may_succeed_later or time.monotonic() >= deadline:
                    raise SourceError(
                        f"{counted(len(failed), 'item')} of a finished batch could not be acked: {error}; start the query again, which repeats the acks"
                    )
            leases = [lease for lease, _ in failed]
            if leases:
                time.sleep(backoff.pause_s(attempts, max(error.retry_after_ms or 0 for _, error in failed)))
                attempts += 1
        return stale

    def _outcomes(self, leases: Sequence[Lease], deadline: float) -> list[Outcome]:
        """Make one attempt to ack. Return the outcomes; a failure of the call is the outcome of each."""
        try:
            left_ms = max(1_000, int((deadline - time.monotonic()) * 1_000))
            return self._client.ack(leases, timeout_ms=left_ms)
        except FoqsError as error:
            return [Outcome(error)] * len(leases)

    def _is_paused(self, topic: str) -> bool:
        page = self._retried(lambda timeout_ms: self._client.topics(topic, None, 1, timeout_ms=timeout_ms))
        return any(found.topic == topic and found.paused for found in page.topics)

    def _retried(self, call: Callable[..., R]) -> R:
        try:
            return retried(call, self._options.timeout_ms)
        except FoqsError as error:
            raise read_refusal(error) from None
