"""Errors that the product logs with an exception. Callers may never notice them, but each is a bug."""

from __future__ import annotations

import logging
from types import TracebackType


class Faults(logging.Handler):
    """Collects, while it is entered, the errors that are logged with an exception, and silences the rest of the log."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: dict[str, None] = {}
        """One line for each kind, in the order of their first occurrence."""
        self._handlers: list[logging.Handler] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.found[f"unexpected error: {record.getMessage()}: {record.exc_info[1]!r}"] = None

    def __enter__(self) -> Faults:
        self._handlers, logging.root.handlers = logging.root.handlers, [self]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        logging.root.handlers = self._handlers
