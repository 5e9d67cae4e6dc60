"""Runs the `foqs` program under the profiler: `python -m perf.lib.profiled FILE host --config ...`.

Always true: every thread is profiled by its own CPU time, so waiting costs nothing.
C code counts for the Python function that called it. When the program ends, the
figures are in FILE, and the CPU seconds of the whole process in FILE.total. Knows
nothing of what runs.
"""

from __future__ import annotations

import cProfile
import pstats
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main() -> None:
    target = sys.argv.pop(1)
    profiles: list[cProfile.Profile] = []
    run_thread: Callable[[threading.Thread], None] = threading.Thread.run

    def profiled_run(thread: threading.Thread) -> None:
        profile = _profile()
        profiles.append(profile)
        profile.runcall(run_thread, thread)

    threading.Thread.run = profiled_run  # type: ignore[assignment,method-assign]
    main_profile = _profile()
    profiles.append(main_profile)
    try:
        main_profile.runcall(_program)
    finally:
        _save(profiles, target)


def _profile() -> cProfile.Profile:
    return cProfile.Profile(time.thread_time, builtins=False)


def _program() -> Any:
    from foqs.cli import main as program

    return program()


def _save(profiles: list[cProfile.Profile], target: str) -> None:
    for profile in profiles:
        profile.disable()
    stats = pstats.Stats(profiles[0])
    for profile in profiles[1:]:
        stats.add(profile)
    stats.dump_stats(target)
    Path(f"{target}.total").write_text(str(time.process_time()))


if __name__ == "__main__":
    main()
