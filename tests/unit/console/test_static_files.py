"""The files that are served as they are."""

from __future__ import annotations

import hashlib

import pytest

from foqs.console.static_files import StaticFiles


@pytest.mark.parametrize("name", ["console.css", "console.js", "htmx.min.js", "uPlot.iife.min.js", "uPlot.min.css"])
def test_another_file_has_another_version(name: str) -> None:
    files = StaticFiles()
    found = files.get(name)
    assert found is not None
    assert hashlib.sha256(found.body).hexdigest().startswith(found.version)
    assert files.version(name) == found.version


@pytest.mark.parametrize("name", ["manifest.json", "htmx.LICENSE", "../server.py", "", "."])
def test_other_files_are_not_served(name: str) -> None:
    assert StaticFiles().get(name) is None
