"""The machine and the program that are measured, and the cost of processes.

Always true: a figure that cannot be read is None, never a guess. Reads /proc; knows
nothing of what is measured.
"""

from __future__ import annotations

import functools
import os
import platform
import resource
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from foqs.runtime.plain_python import is_compiled

ROOT: Final = Path(__file__).resolve().parents[2]
_PACKAGES: Final = (
    "foqs", "thrift", "uvloop", "aiomysql", "PyMySQL", "asyncpg", "pgqueuer", "redis", "hiredis", "aiormq", "nats-py",
)  # fmt: skip
_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
_CPU_CLOCK: Final = 2
"""The clock of the scheduler for a whole process: CPUCLOCK_SCHED of linux/posix-timers.h."""


@functools.cache
def facts() -> dict[str, Any]:
    """Return the facts that do not change during a run."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        "kernel": platform.release(),
        "system": _system(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "compiled": is_compiled(),
        "commit": _git("rev-parse", "HEAD"),
        "dirty": _dirty(),
    }


def load() -> float:
    """Return the load average of the last minute."""
    return round(os.getloadavg()[0], 2)


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process with all its threads, living and ended; 0 when it is gone.

    It is exact to the nanosecond: it reads the process's CPU clock, whose number derives from the pid.
    """
    try:
        return time.clock_gettime(~pid << 3 | _CPU_CLOCK)
    except OSError:
        return 0.0


def family_cpu_s(pid: int) -> float:
    """Return `cpu_s` with all children, living and ended, for a server with a process per connection."""
    total = cpu_s(pid)
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[13]) + int(fields[14])) * _TICK_S
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return total
    return total + sum(family_cpu_s(int(child)) for child in children)


def own_cpu_s() -> float:
    """Return the CPU seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def resident_mib(pid: int) -> float | None:
    """Return the resident memory of a process."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return None
    return round(pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20), 1)


def peak_mib(pid: int) -> float | None:
    """Return the highest resident memory of a process so far."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    return next((round(int(line.split()[1]) / 1024, 1) for line in lines if line.startswith("VmHWM:")), None)


def _cpu_model() -> str | None:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine() or None


def _system() -> str | None:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _dirty() -> bool | None:
    changed = _git("status", "--porcelain")
    return None if changed is None else bool(changed)
