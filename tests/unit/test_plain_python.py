"""The choice between compiled modules and plain Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HOT = "foqs.core.items.item"
PROGRAM = f"import {HOT} as hot; print(hot.__file__)"


@pytest.mark.parametrize("value", ["1", "yes"])
def test_foqs_pure_imports_the_source(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOQS_PURE", value)

    assert _imported_file().suffix == ".py"


@pytest.mark.parametrize("value", ["", "0"])
def test_without_foqs_pure_a_compiled_module_comes_before_its_source(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOQS_PURE", value)
    found = _imported_file()

    compiled = list(found.parent.glob("item.*.so"))

    assert found == (compiled[0] if compiled else found.with_name("item.py"))


def _imported_file() -> Path:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())
