"""Tests of the bill of materials: it names no folder and no registry."""

from __future__ import annotations

import runpy
from pathlib import Path

CLEANED = runpy.run_path(str(Path(__file__).parents[3] / "tools" / "sbom.py"))["cleaned"]


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
