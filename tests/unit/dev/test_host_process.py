"""The environment of the programs that `foqs dev` and tests start."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from foqs.dev.host_process import PROGRAM, program_environment
from tests.support.quick_foqs import quick_foqs

SHOW_PATH = "import json, sys; print(json.dumps(sys.path))"


@pytest.mark.parametrize("command", [PROGRAM, quick_foqs(), (sys.executable,)])
def test_program_of_this_python_has_the_modules_of_this_process(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", ["/another/tree", *sys.path])
    environment = program_environment(command)
    shown = subprocess.run([sys.executable, "-c", SHOW_PATH], env=environment, capture_output=True, check=True)
    assert json.loads(shown.stdout)[1] == "/another/tree"


def test_another_program_has_its_own_modules_and_no_options_of_foqs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", "FOQS_SERVER__PORT", "FOQS_PURE"):
        monkeypatch.setenv(name, "1")
    environment = program_environment(["/older/bin/foqs"])
    assert {"PYTHONPATH", "FOQS_SERVER__PORT", "FOQS_PURE"} & environment.keys() == {"FOQS_PURE"}
