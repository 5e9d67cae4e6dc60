"""The files of others that the console serves: each is the published one, with its licence."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import foqs.console

FOLDER = Path(foqs.console.__file__).parent / "vendor"
MANIFEST: list[dict[str, Any]] = json.loads((FOLDER / "manifest.json").read_text())
PAGE_BYTES_MAX = 120_000
"""Of all scripts and styles together."""


def test_each_file_has_the_hash_of_the_manifest_and_no_other_file_is_there() -> None:
    listed = {name: entry["sha256"] for package in MANIFEST for name, entry in package["files"].items()}
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in FOLDER.iterdir()
        if path.name != "manifest.json"
    }
    assert found == listed


def test_each_package_comes_with_its_licence() -> None:
    for package in MANIFEST:
        (licence,) = [name for name, entry in package["files"].items() if entry["path"] == "LICENSE"]
        words = (FOLDER / licence).read_text()
        assert {"0BSD": "Zero-Clause BSD", "MIT": "MIT License"}[package["license"]] in words


def test_what_a_page_loads_is_small() -> None:
    served = [path for folder in ("vendor", "static") for path in (FOLDER.parent / folder).iterdir()]
    assert sum(path.stat().st_size for path in served if path.suffix in (".js", ".css")) < PAGE_BYTES_MAX
