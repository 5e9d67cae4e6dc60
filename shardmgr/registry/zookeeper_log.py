"""Logs kazoo's messages while it connects once, and not with every attempt.

Always true: `last_message` is kazoo's last message since the service was reached; a
repeated message is logged once. Before the first connection nothing is logged: the
error of `open` shows `last_message`. Knows nothing of sessions.
"""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)


class KazooLog(logging.Handler):
    """The handler behind `logger`, which is kazoo's. Kazoo's threads may log at any time."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last_message = ""
        self.logger = logging.Logger("kazoo", logging.WARNING)
        self.logger.addHandler(self)
        self._was_connected = False

    def on_connected(self) -> None:
        """The service has answered: earlier messages are obsolete."""
        self._was_connected = True
        self.last_message = ""

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if message != self.last_message:
            self.last_message = message
            if self._was_connected:
                log.log(record.levelno, "ZooKeeper: %s", message, exc_info=record.exc_info)
