"""Extends the leases of a stream's items while their batch is under way.

Holds `StreamLeaseRenewal`. Always true: its thread extends each lease three times within its
duration, until it is dropped or the queue refuses it. A lease that cannot be extended
is no error: its token still acks the item until another consumer gets it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Final, Protocol

from foqs_client.errors import FoqsError
from foqs_client.spark.staging import Lease
from foqs_client.types import Outcome

IDS_PER_CALL: Final = 500
RETRY_S: Final = 1.0
_log: Final = logging.getLogger("foqs_client.spark")


class ExtendClient(Protocol):
    """The part of a `SyncClient` that renews leases."""

    def extend(self, leases: Sequence[Lease], *, lease_ms: int | None, timeout_ms: int | None) -> list[Outcome]: ...


class StreamLeaseRenewal:
    """Renews leases until it is stopped.

    Args:
        client: the client that extends the leases. Other threads may use it, too.
        lease_ms: the duration of a lease.
    """

    def __init__(self, client: ExtendClient, lease_ms: int) -> None:
        self._client = client
        self._lease_ms = lease_ms
        self._leases: dict[str, dict[str, int]] = {}
        """By file, the tokens of its leases, by item id."""
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="foqs-lease-renewal", daemon=True)
        self._thread.start()

    def add(self, name: str, leases: Sequence[Lease]) -> None:
        """Renew these leases of a file from now on."""
        with self._lock:
            self._leases.setdefault(name, {}).update(leases)

    def drop(self, name: str) -> None:
        """Renew the leases of a file no more."""
        with self._lock:
            self._leases.pop(name, None)

    def stop(self) -> None:
        """End the thread. What is leased stays leased until its lease ends."""
        self._stopped.set()
        self._thread.join()

    def renew(self) -> bool:
        """Extend all leases once. Returns whether all calls were answered."""
        with self._lock:
            files = {name: list(leases.items()) for name, leases in self._leases.items()}
        is_complete = True
        for name, leases in files.items():
            for start in range(0, len(leases), IDS_PER_CALL):
                if self._stopped.is_set():
                    return True
                is_complete &= self._extend(name, leases[start : start + IDS_PER_CALL])
        return is_complete

    def _run(self) -> None:
        pause_s = self._lease_ms / 3_000
        while not self._stopped.wait(pause_s):
            pause_s = self._lease_ms / 3_000 if self.renew() else min(RETRY_S, self._lease_ms / 3_000)

    def _extend(self, name: str, leases: Sequence[Lease]) -> bool:
        try:
            outcomes = self._client.extend(leases, lease_ms=self._lease_ms, timeout_ms=max(1_000, self._lease_ms // 3))
        except FoqsError as error:
            _log.warning("leases of the items in the staged file %s were not extended; trying again: %s", name, error)
            return False
        failures = [outcome.error for outcome in outcomes if outcome.error is not None]
        ended = {
            item
            for (item, _), outcome in zip(leases, outcomes, strict=True)
            if outcome.error is not None and not outcome.error.may_succeed_later
        }
        with self._lock:
            kept = self._leases.get(name, {})
            for item in ended:
                kept.pop(item, None)
        return len(failures) == len(ended)
