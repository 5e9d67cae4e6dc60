"""The Python client of FOQS.

async with Client("foqs://127.0.0.1:7411") as client:
    await client.enqueue([Item(topic="mail", payload=b"hello")])
    for delivery in await client.dequeue({"mail": 10}, wait_ms=1_000):
        await client.ack([delivery])
"""

from foqs_client.admin_calls import AuditEntry, AuditPage, Grant, Namespace, NamespacePage, Usage
from foqs_client.bulk_job_calls import BulkJob
from foqs_client.client import Client
from foqs_client.credentials import Tls
from foqs_client.errors import (
    DeadlineExceeded,
    FoqsError,
    InvalidArgument,
    KeyConflict,
    KeyEnded,
    LimitExceeded,
    NamespaceNotFound,
    NotFound,
    NotImplementedYet,
    NotOwner,
    Overloaded,
    PermissionDenied,
    RateLimited,
    StaleLease,
    Unauthenticated,
    Unavailable,
    UnknownOutcome,
    Unreachable,
)
from foqs_client.sync_client import SyncClient
from foqs_client.types import (
    BulkPage,
    Change,
    Deliveries,
    Delivery,
    Enqueued,
    Explanation,
    Host,
    Item,
    ItemCount,
    ItemFilter,
    ItemPage,
    ItemView,
    Nack,
    Outcome,
    RestoredItem,
    Routing,
    Shard,
    Topic,
    TopicPage,
)

__all__ = [
    "AuditEntry",
    "AuditPage",
    "BulkJob",
    "BulkPage",
    "Change",
    "Client",
    "DeadlineExceeded",
    "Deliveries",
    "Delivery",
    "Enqueued",
    "Explanation",
    "FoqsError",
    "Grant",
    "Host",
    "InvalidArgument",
    "Item",
    "ItemCount",
    "ItemFilter",
    "ItemPage",
    "ItemView",
    "KeyConflict",
    "KeyEnded",
    "LimitExceeded",
    "Nack",
    "Namespace",
    "NamespaceNotFound",
    "NamespacePage",
    "NotFound",
    "NotImplementedYet",
    "NotOwner",
    "Outcome",
    "Overloaded",
    "PermissionDenied",
    "RateLimited",
    "RestoredItem",
    "Routing",
    "Shard",
    "StaleLease",
    "SyncClient",
    "Tls",
    "Topic",
    "TopicPage",
    "Unauthenticated",
    "Unavailable",
    "UnknownOutcome",
    "Unreachable",
    "Usage",
]
