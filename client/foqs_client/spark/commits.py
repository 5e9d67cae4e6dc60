"""The reports of tasks to the driver, and the driver's log.

Holds `TaskCommit` and `log_row_errors`. Knows nothing of hosts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from pyspark.sql.datasource import WriterCommitMessage

from foqs_client.spark.partition_writer import WriteResult
from foqs_contract.plurals import counted

REASONS_MAX: Final = 5
_log: Final = logging.getLogger("foqs_client.spark")


class TaskCommit(WriterCommitMessage):
    """The result of a task.

    Attributes:
        result: the counts of its rows.
    """

    def __init__(self, result: WriteResult) -> None:
        self.result = result


def log_row_errors(title: str, messages: Iterable[WriterCommitMessage | None]) -> None:
    """Log how many rows were skipped or became dead letters, with the first reasons; nothing if there are none."""
    results = [message.result for message in messages if isinstance(message, TaskCommit)]
    skipped = sum(result.skipped for result in results)
    dead_letters = sum(result.dead_letters for result in results)
    if skipped or dead_letters:
        reasons = [reason for result in results for reason in result.reasons][:REASONS_MAX]
        _log.warning(
            "%s: %s, %s skipped, %s; the first reasons: %s",
            title,
            counted(sum(result.items for result in results), "item"),
            counted(skipped, "row"),
            counted(dead_letters, "dead letter"),
            "; ".join(reasons),
        )
