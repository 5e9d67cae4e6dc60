"""The error of a Spark job that reads or writes a queue.

Holds `JobError`, and `without_traceback`. Pure.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from types import TracebackType
from typing import Self


class JobError(Exception):
    """The job failed. The text is one sentence for its user: what is wrong, where, and what to do.

    It never contains a secret.
    """


class SourceError(JobError):
    """A read of the source `foqs` failed."""


class without_traceback:  # noqa: N801 - it is used like a function
    """Remove the traceback of a JobError: Spark shows it to the user, who needs only the sentence.

    A process that Spark starts for Python writes the traceback of the error that ends it. It leaves
    out its own part if Spark set `SPARK_SIMPLIFIED_TRACEBACK`, which it does by default, and all of it with
    `SPARK_HIDE_TRACEBACK`.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, JobError):
            if os.environ.get("SPARK_SIMPLIFIED_TRACEBACK"):
                os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            raise error.with_traceback(None) from None


def comma_separated(names: Iterable[str]) -> str:
    """Return the names as one text, with a comma and a space between them."""
    return ", ".join(names)
