#!/usr/bin/env python3
"""Writes the bill of materials of a release: `sbom.py FILE`.

Builds the wheel, installs it with its server and spark extras into a temporary environment of its own, with
the versions of constraints.txt, and describes that environment in CycloneDX's JSON form. The file names no folder of this machine and
no registry: references to files and download addresses are removed.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
KINDS_KEPT: Final = frozenset(("website", "documentation", "issue-tracker", "vcs", "release-notes", "license"))
"""The kinds of references that stay. The others say where a file was taken from."""

VENDORED: Final = ROOT / "foqs" / "console" / "vendor" / "manifest.json"

_REGISTRY: Final = re.compile(r"//[^/]*pypi\.|/simple/")


def cleaned(part: Any) -> Any:
    """Return a part of the bill without references to files and registries."""
    if isinstance(part, list):
        return [cleaned(one) for one in part]
    if not isinstance(part, dict):
        return part
    kept = {name: cleaned(value) for name, value in part.items() if name != "externalReferences"}
    found = [one for one in part.get("externalReferences", ()) if _is_kept(one)]
    return kept | {"externalReferences": found} if found else kept


def _is_kept(reference: dict[str, Any]) -> bool:
    url = reference["url"]
    return reference["type"] in KINDS_KEPT and url.startswith(("http://", "https://")) and not _REGISTRY.search(url)


def describe(python: Path) -> dict[str, Any]:
    """Return the bill of the environment of an interpreter."""
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--of", "JSON"]
    done = subprocess.run([*command, str(python)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"the environment cannot be described:\n{done.stderr}")
    bill: dict[str, Any] = cleaned(json.loads(done.stdout))
    return bill


def vendored() -> list[dict[str, Any]]:
    """Return the components that the console holds as files, by its manifest."""
    return [
        {
            "bom-ref": f"vendored-{package['package']}",
            "licenses": [{"license": {"id": package["license"]}}],
            "name": package["package"],
            "purl": f"pkg:npm/{package['package']}@{package['version']}",
            "type": "library",
            "version": package["version"],
        }
        for package in json.loads(VENDORED.read_text())
    ]


def _run(*command: str | Path) -> None:
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{command[0]} failed:\n{done.stdout}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path, help="where to write the bill")
    file: Path = parser.parse_args().file
    with tempfile.TemporaryDirectory(prefix="foqs-sbom-") as scratch:
        folder = Path(scratch)
        _run(sys.executable, ROOT / "tools" / "dist.py", folder)
        [wheel] = folder.glob("*.whl")
        venv.create(folder / "venv", with_pip=False)
        python = folder / "venv" / "bin" / "python"
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
        _run(*pip, "install", "--quiet", f"{wheel}[server,spark]", "-c", ROOT / "constraints.txt")
        bill = describe(python)
        bill["components"] += vendored()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(bill, indent=2) + "\n")
    print(f"{file}: {len(bill['components'])} components")


if __name__ == "__main__":
    main()
