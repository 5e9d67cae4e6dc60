"""The files that are served as they are."""

from __future__ import annotations

import hashlib

import pytest

from foqs.console.static_files import StaticFiles


@pytest.mark.parametrize("name", ["console.css", "console.js", "htmx.min.js", "uPlot.iife.min.js", "uPlot.min.css"])
def test_an_address_holds_the_version_of_its_file(name: str) -> None:
    files = StaticFiles()
    found = files.get(name)
    assert found is not None
    assert hashlib.sha256(found.body).hexdigest().startswith(found.version)
    assert files.address(name) == f"/static/{name}?v={found.version}"


@pytest.mark.parametrize("name", ["manifest.json", "htmx.LICENSE", "../server.py", "", "."])
def test_other_files_are_not_served(name: str) -> None:
    assert StaticFiles().get(name) is None
