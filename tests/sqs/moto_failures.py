"""The tests of moto's SQS suite that fail against FOQS, each with its reason."""

from __future__ import annotations

from typing import Final

OTHER_FAILURES: Final[dict[str, str]] = {
    "test_create_queue_with_different_attributes_fail": "it creates a queue with FifoQueue = tru, which SQS refuses as well",
    "test_message_retention_period": "it sets a retention of 1 s; SQS' minimum is 60 s",
    "test_change_message_visibility_on_old_message": "a receipt that another delivery has superseded changes nothing",
    "test_batch_change_message_visibility_on_old_message": "a receipt that another delivery has superseded changes nothing",
    "test_delete_message_using_old_receipt_handle": "a receipt that another delivery has superseded deletes nothing; SQS' documentation says so, too",
    "test_message_with_invalid_attributes": "it gives a name with an umlaut, which SQS takes as well",
    "test_change_message_visibility_on_unknown_receipt_handle": "it wants a text that does not name the handle; that of SQS does",
    "test_delete_message_errors": "it wants a text that does not name the handle; that of SQS does",
    "test_message_delay_is_more_than_15_minutes": "it gives a MessageDeduplicationId to a standard queue, which SQS refuses as well",
}
"""Tests that name neither FIFO nor groups; at most nine."""

FIFO_FAILURES: Final[dict[str, str]] = {
    "test_create_fifo_queue_with_dlq": "it creates a standard queue with FifoQueue = false, which SQS refuses as well",
}
"""Tests of FIFO queues and of groups."""

QUERY_FAILURES: Final[dict[str, str]] = dict.fromkeys(
    (
        "test_message_attributes_contains_trace_header",
        "test_message_system_attributes_contains_all_attributes",
        "test_message_system_attributes_contains_system_attribute[MessageGroupId]",
        "test_message_system_attributes_contains_system_attribute[MessageDeduplicationId]",
        "test_message_system_attributes_contains_system_attribute[ApproximateFirstReceiveTimestamp]",
        "test_message_system_attributes_contains_system_attribute[ApproximateReceiveCount]",
        "test_message_system_attributes_contains_system_attribute[SenderId]",
        "test_message_system_attributes_contains_system_attribute[SentTimestamp]",
        "test_message_system_attributes_contains_system_attribute[SequenceNumber]",
    ),
    "the client of that time does not know MessageSystemAttributeNames",
)
"""Further tests that fail with a client of the Query protocol."""
