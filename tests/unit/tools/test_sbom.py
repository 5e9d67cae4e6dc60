"""Tests of the bill of materials: it names no folder and no registry."""

from __future__ import annotations

import runpy
from pathlib import Path

SBOM = runpy.run_path(str(Path(__file__).parents[3] / "tools" / "sbom.py"))
CLEANED, VENDORED = SBOM["cleaned"], SBOM["vendored"]


def test_bill_keeps_no_reference_to_a_file_or_a_registry() -> None:
    site = {"type": "website", "url": "https://foqs.example"}
    found = [
        site,
        {"type": "distribution", "url": "file:///home/me/foqs.whl"},
        {"type": "distribution", "url": "https://files.example/foqs.whl"},
        {"type": "website", "url": "https://registry.example/simple/foqs"},
    ]
    bill = {"components": [{"name": "a", "externalReferences": found}, {"name": "b", "externalReferences": found[1:]}]}
    assert CLEANED(bill) == {"components": [{"name": "a", "externalReferences": [site]}, {"name": "b"}]}


def test_bill_lists_the_files_of_others_that_the_console_serves() -> None:
    found = {part["purl"]: part["licenses"][0]["license"]["id"] for part in VENDORED()}
    assert found == {"pkg:npm/htmx.org@4.0.1": "0BSD", "pkg:npm/uplot@1.6.32": "MIT"}
