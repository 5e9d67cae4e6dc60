"""Tests of the program's entry when the server's packages are missing."""

from __future__ import annotations

import sys

import pytest

from foqs.__main__ import main


def test_without_the_server_extra_the_program_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "foqs.cli" or name.startswith("foqs.cli.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "click", None)
    with pytest.raises(SystemExit, match=r"pip install 'foqs\[server\]'"):
        main()
