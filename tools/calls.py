"""Writes docs/calls.md, the table of the calls, from their rows in foqs_contract.call_table.

python tools/calls.py            writes
python tools/calls.py --check    exits 1 when the page is not up to date
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "client"))

from foqs_contract.call_table import CALLS, CallRow  # noqa: E402 - the project need not be installed

_HEAD: Final = """# Calls

The calls of [the contract](../thrift/foqs.thrift), whose comments say what each of them does. This page is made from `client/foqs_contract/call_table.py`, and `make check` compares the two.

- *Needs*: a grant on the namespace that the request names, or what stands there instead. An administrator may make every call.
- *Changes*: a call that can change something. *Noted*: each one is in [the audit](access.md#see-who-changed-what).
- *Served by*: the hosts that do the work, whichever host of the tier is called.
- *Since*: the first version of the contract with the call.

| call | needs | changes | served by | since |
|---|---|---|---|---|
"""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Writes the table of the calls.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is out of date")
    parser.add_argument("--file", type=Path, default=ROOT / "docs" / "calls.md", help="the page")
    options = parser.parse_args(arguments)
    page: Path = options.file
    if page.exists() and page.read_text() == render():
        return 0
    if options.check:
        print(f"{page} is not up to date; run: python tools/calls.py", file=sys.stderr)
        return 1
    page.write_text(render())
    return 0


def render() -> str:
    """Return the page."""
    return _HEAD + "".join(map(_line, CALLS.values()))


def _line(row: CallRow) -> str:
    changes = "yes, noted" if row.is_audited else "yes" if row.writes else ""
    return f"| `{row.name}` | {row.requirement} | {changes} | {row.route.value} | {row.since} |\n"


if __name__ == "__main__":
    sys.exit(main())
