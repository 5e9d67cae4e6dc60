"""Tests of the program's entry."""

from __future__ import annotations

import runpy
import sys

import pytest

from foqs.__main__ import main


def test_without_the_server_extra_the_program_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "foqs.cli" or name.startswith("foqs.cli.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "click", None)
    with pytest.raises(SystemExit, match=r"pip install 'foqs\[server\]'"):
        main()


def test_the_package_runs_as_the_program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`python -m foqs` runs the command line. It must not end in silence with exit code 0."""
    monkeypatch.setattr(sys, "argv", ["foqs", "--version"])
    monkeypatch.delitem(sys.modules, "foqs.__main__", raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("foqs", run_name="__main__")
    assert not ended.value.code
    assert "foqs" in capsys.readouterr().out
