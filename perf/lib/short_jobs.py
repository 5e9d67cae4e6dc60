"""The worker that `perf.in_flight` gives to `foqs worker`: some consumers, each of a topic of its own.

Each worker notes when it began its first and its last item, in a file named by its
process id in the folder PERF_NOTES. Knows nothing of what is compared.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import time
from pathlib import Path

from foqs_client.consumer import Job, Worker

WAIT_S = float(os.environ.get("PERF_WAIT_S", "0"))
begun_at_s: list[float] = []


async def short(job: Job) -> None:
    """Waits for PERF_WAIT_S, or not at all."""
    begun_at_s.append(time.monotonic())
    if WAIT_S:
        await asyncio.sleep(WAIT_S)


def plain(job: Job) -> None:
    """Does the same in a thread."""
    begun_at_s.append(time.monotonic())
    if WAIT_S:
        time.sleep(WAIT_S)


worker = Worker()
for number in range(int(os.environ["PERF_CONSUMERS"])):
    worker.add({"short": short, "plain": plain}[os.environ["PERF_HANDLER"]], f"t-{number}")


@atexit.register
def _write() -> None:
    if begun_at_s:
        note = {
            "first_s": begun_at_s[0],
            "last_s": max(begun_at_s),
            "items": len(begun_at_s),
            "cpu_s": time.process_time(),
        }
        (Path(os.environ["PERF_NOTES"]) / f"{os.getpid()}.json").write_text(json.dumps(note))
