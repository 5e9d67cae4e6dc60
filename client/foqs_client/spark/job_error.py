"""The error of a Spark job that reads or writes a queue.

Holds `JobError`, and `without_traceback`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class JobError(Exception):
    """The job failed. The text is one sentence for its user: what is wrong, where, and what to do.

    It never contains a secret.
    """


class SourceError(JobError):
    """A read failed."""


@contextmanager
def without_traceback() -> Iterator[None]:
    """Remove the traceback of a JobError: Spark shows it to the user, who needs only the sentence."""
    try:
        yield
    except JobError as error:
        raise error.with_traceback(None) from None


def comma_separated(names: Iterable[str]) -> str:
    """Return `a, b, c`."""
    return ", ".join(names)
