"""Runs the `foqs` program and measures how long its event loop is held: `python -m perf.lib.held_loop FILE host --config ...`.

Its journals write no row back within an hour. Always true: when the program ends by itself, FILE has the longest hold
in milliseconds. Knows nothing of what runs.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Final

import uvloop

_INTERVAL_S: Final = 0.002
_YOUNG_MS: Final = 3_600_000


class HeldLoop:
    """Looks at the clock every two milliseconds, as far as the event loop lets it."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._due_s = 0.0
        self._new_event_loop = uvloop.new_event_loop

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        loop = self._new_event_loop()
        loop.call_soon(self._tick, loop)
        self._due_s = time.monotonic()
        return loop

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        now_s = time.monotonic()
        self.longest_s = max(self.longest_s, now_s - self._due_s)
        self._due_s = now_s + _INTERVAL_S
        loop.call_later(_INTERVAL_S, self._tick, loop)


def main() -> None:
    from foqs.cli import main as program
    from foqs.store import factories

    target, held = sys.argv.pop(1), HeldLoop()
    vars(factories)["WRITE_BACK_AFTER_MS"] = _YOUNG_MS
    vars(uvloop)["new_event_loop"] = held.new_event_loop
    try:
        program()
    finally:
        Path(target).write_text(str(held.longest_s * 1_000))


if __name__ == "__main__":
    main()
