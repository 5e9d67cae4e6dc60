"""Ends with 0 if a Docker-compatible engine answers, as tests in containers need it, and with 3 if none does."""

from __future__ import annotations

import sys
from typing import Final

from docker.errors import DockerException

from tests.support.containers import engine

NO_ENGINE: Final = 3
"""Not the exit code of an error of Python."""


def main() -> int:
    try:
        engine().ping()
    except DockerException:
        return NO_ENGINE
    return 0


if __name__ == "__main__":
    sys.exit(main())
