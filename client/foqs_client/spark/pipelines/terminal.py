"""The messages and questions of a pipeline, on standard error.

Holds `say`, `confirm` and `progress`. Always true: nothing is asked of a program.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from foqs_client.spark.pipelines.connection import PipelineError
from foqs_contract.plurals import counted
from foqs_contract.printable_text import printable

_INTERVAL_S: Final = 2.0


def say(text: str) -> None:
    """Print one line. Control characters, as in the texts of items and errors, are escaped."""
    print(printable(text), file=sys.stderr, flush=True)  # noqa: T201


def confirm(question: str, *, yes: bool) -> bool:
    """Return whether the person agrees. Raises PipelineError if there is nobody to ask."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise PipelineError(f"{question} Nobody can be asked here: repeat the command with --yes, or with --dry-run")
    say(f"{question} [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


@contextmanager
def progress(context: Any, title: str) -> Iterator[None]:
    """Print how many tasks of Spark's jobs are done, every two seconds, while the block runs.

    Args:
        context: the session's SparkContext; None with Spark Connect, which does not report tasks.
    """
    if context is None:
        yield
        return
    ended = threading.Event()

    def watch() -> None:
        shown = ""
        while not ended.wait(_INTERVAL_S):
            text = _tasks_text(context.statusTracker(), title)
            if text and text != shown:
                shown = text
                say(text)

    watcher = threading.Thread(target=watch, name="foqs-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _tasks_text(tracker: Any, title: str) -> str:
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    found = [stage for stage in stages if stage is not None]
    if not found:
        return ""
    done, total = sum(stage.numCompletedTasks for stage in found), sum(stage.numTasks for stage in found)
    return f"{title}: {done:,} of {counted(total, 'task')}"
