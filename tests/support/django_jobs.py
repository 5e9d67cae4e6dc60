"""The job of a task that a test has enqueued, as a worker gets it. Nothing is relayed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from foqs_client import Delivery
from foqs_client.consumer import Job
from tests.support.django_project import query


def delivered(attempt: int = 1, metadata: bytes = b"", **changes: Any) -> Job:
    """Return the job of the only row of the outbox."""
    [(id, topic, payload, attempts_max)] = query("SELECT event_id, topic, payload, attempts_max FROM foqs_outbox")
    delivery = Delivery(
        id=id,
        topic=topic,
        payload=bytes(payload),
        attempt=attempt,
        attempts_max=attempts_max,
        metadata=metadata,
        lease_remaining_ms=30_000,
        incarnation=1,
    )
    return Job(replace(delivery, **changes), lambda _job, _lease_ms: None)
