"""Runs programs, which are modules with a `main`, in processes that are forked from one process that has imported them.

A new interpreter would import them again for each run. Each run has its own process,
so what it leaves behind ends with it.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import forkserver
from pathlib import Path
from typing import Final

import pytest

_PROCESSES: Final = multiprocessing.get_context("forkserver")
_ENVIRONMENT: Final[Mapping[str, str]] = {"PYTHONHASHSEED": "0", "PYTHONWARNINGS": "error"}
TIMEOUT_S: Final = 900.0


@dataclass(slots=True, frozen=True)
class Done:
    """The end of a run.

    Attributes:
        output: what it wrote to both streams.
    """

    returncode: int
    output: str


def preload(*modules: str) -> None:
    """Import these modules once for all runs. Call it before the first run."""
    _PROCESSES.set_forkserver_preload(list(modules))


def run_program(module: str, *arguments: str) -> Done:
    """Run the `main` of a module with these arguments of the command line, until it ends."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in _ENVIRONMENT.items():
            patch.setenv(name, value)
        forkserver.ensure_running()
    with tempfile.TemporaryDirectory(prefix="foqs-program-") as folder:
        output = Path(folder) / "output"
        process = _PROCESSES.Process(target=_run, args=(module, arguments, output))
        process.start()
        process.join(TIMEOUT_S)
        if process.exitcode is None:
            process.kill()
            process.join()
        assert process.exitcode is not None
        return Done(process.exitcode, output.read_text(encoding="utf-8") if output.exists() else "")


def _run(module: str, arguments: tuple[str, ...], output: Path) -> None:
    with output.open("wb", buffering=0) as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    sys.argv = [module, *arguments]
    sys.exit(import_module(module).main())
