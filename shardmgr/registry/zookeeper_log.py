"""What kazoo says while it connects, told once instead of with every attempt.

Always true: `last_message` is its last complaint since the service was reached, and a
complaint that is repeated is passed on once. Before the service was reached for
the first time nothing is passed on: whoever waits for that is told `last_message`. Knows
nothing of sessions.
"""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)


class KazooLog(logging.Handler):
    """Give kazoo its `logger`. Kazoo's threads may speak at any time."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last_message = ""
        self.logger = logging.Logger("kazoo", logging.WARNING)
        self.logger.addHandler(self)
        self._was_connected = False

    def on_connected(self) -> None:
        """The service has answered: what was said is settled."""
        self._was_connected = True
        self.last_message = ""

    def emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        if said != self.last_message:
            self.last_message = said
            if self._was_connected:
                log.log(record.levelno, "ZooKeeper: %s", said, exc_info=record.exc_info)
