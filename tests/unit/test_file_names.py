"""A file name occurs in two packages of the product only if it means the same in both."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Final

_REPOSITORY: Final = Path(__file__).parents[2]
_PACKAGES: Final = ("foqs", "shardmgr", "client/foqs_client", "client/foqs_contract")

_MEANINGS: Final = {
    "__init__": "the package",
    "__main__": "what `python -m` runs",
    "changes": "what the package changes: the catalog's document, or the items that a pipeline chooses",
    "errors": "the errors of the package",
    "lease_renewal": "extends the leases of what is being worked on",
    "options": "the options, with their units and defaults",
    "port": "what the package asks of others, or offers to them",
    "server": "serves one port of a host",
}


def test_no_file_name_has_two_meanings() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for package in _PACKAGES:
        for path in (_REPOSITORY / package).rglob("*.py"):
            if "idl" not in path.parts:
                places[path.stem].append(str(path.relative_to(_REPOSITORY)))
    several = {name: paths for name, paths in places.items() if len(paths) > 1}
    unknown = {name: paths for name, paths in several.items() if name not in _MEANINGS}
    assert not unknown, f"rename one of the two, or say above what the name means in both: {unknown}"
    assert _MEANINGS.keys() == several.keys(), "a name above is not used twice any more"
