"""The outbox: items that are written in a user's own transaction, and the relay that enqueues them.

docs/outbox.md shows how it is used; docs/design/outbox.md says how it works.
"""

from foqs_client.outbox.enqueueing import enqueue, enqueue_async
from foqs_client.outbox.outbox_errors import NotInTransaction

__all__ = ["NotInTransaction", "enqueue", "enqueue_async"]
