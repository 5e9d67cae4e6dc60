"""What the product itself calls unforeseen. It lives through it, its users may never notice, and it is a bug all the same."""

from __future__ import annotations

import logging
from types import TracebackType


class Faults(logging.Handler):
    """Collects, while it is entered, whatever is logged as an error with an exception, and keeps the rest of the log silent."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: dict[str, None] = {}
        """One line for each kind, in the order in which they came first."""
        self._handlers: list[logging.Handler] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.found[f"a fault of ours: {record.getMessage()}: {record.exc_info[1]!r}"] = None

    def __enter__(self) -> Faults:
        self._handlers, logging.root.handlers = logging.root.handlers, [self]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        logging.root.handlers = self._handlers
