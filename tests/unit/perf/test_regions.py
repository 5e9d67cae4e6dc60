"""A trial of regions that cannot be made says why."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from foqs.dev.server_process import ServerNotAvailable
from perf import regions
from perf.lib.report import Report


def test_trial_without_its_servers_says_why_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def refuse(**_: Any) -> NoReturn:
        raise ServerNotAvailable("a distance between regions needs root")

    monkeypatch.setattr(regions, "LocalCluster", refuse)
    monkeypatch.setattr(regions, "Report", lambda program: Report(program, tmp_path))
    monkeypatch.setattr(sys, "argv", ["perf.regions", "loss"])
    assert regions.main() == 1
    assert "no figure: a distance between regions needs root" in capsys.readouterr().err
