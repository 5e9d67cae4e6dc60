"""The outbox: items that are written in a user's own transaction, and the relay that enqueues them.

Built so far: `enqueue`, `enqueue_async`, the tables, and the pure core of the relay. docs/design/outbox.md says how the
rest will work.
"""

from foqs_client.outbox.enqueueing import enqueue, enqueue_async
from foqs_client.outbox.outbox_errors import NotInTransaction

__all__ = ["NotInTransaction", "enqueue", "enqueue_async"]
