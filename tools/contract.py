"""Compares thrift/foqs.thrift with the contracts of earlier versions, which are recorded in tests/compat.

    python tools/contract.py --check           exits 1 with a sentence for each incompatible change
    python tools/contract.py --record FILE     writes the contract in its recorded form

Always true: a change that this check accepts can be read by hosts and clients of the recorded
version. Fields may be added if they are optional and have a new number. Knows nothing of meanings.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

ROOT = Path(__file__).resolve().parent.parent
CONTRACT = ROOT / "thrift" / "foqs.thrift"
RECORDED = ROOT / "tests" / "compat" / "contracts"

Fields: TypeAlias = Mapping[int, str]
"""By number: requiredness, type and name, as in `optional i64 timeout_ms`."""

_COMMENT: Final = re.compile(r"/\*.*?\*/|//[^\n]*|#[^\n]*", re.DOTALL)
_BLOCK: Final = re.compile(r"(struct|exception|enum|service)\s+(\w+)\s*\{([^}]*)\}")
_FIELD: Final = re.compile(r"(\d+)\s*:\s*(?:(optional|required)\s+)?([\w.]+(?:\s*<[^>]*>)?)\s+(\w+)")
_VALUE: Final = re.compile(r"(\w+)\s*=\s*(\d+)")
_METHOD: Final = re.compile(r"(\w+)\s+(\w+)\s*\(([^)]*)\)\s*(?:throws\s*\(([^)]*)\))?")


@dataclass(slots=True, frozen=True)
class Contract:
    """The structs and exceptions, the enums and the methods of a contract, by name.

    Attributes:
        enums: the names of the values, by number.
        methods: the argument, result and exception of each.
    """

    structs: Mapping[str, Fields]
    enums: Mapping[str, Mapping[int, str]]
    methods: Mapping[str, str]


def parse_contract(text: str) -> Contract:
    """Parse the text of a Thrift file: the part of the language that the contract uses."""
    structs: dict[str, Fields] = {}
    enums: dict[str, Mapping[int, str]] = {}
    methods: dict[str, str] = {}
    for kind, name, body in _BLOCK.findall(_COMMENT.sub("", text)):
        if kind == "enum":
            enums[name] = {int(number): value for value, number in _VALUE.findall(body)}
        elif kind == "service":
            for result, method, argument, thrown in _METHOD.findall(body):
                methods[method] = f"{_squeezed(argument)} -> {result}, throws {_squeezed(thrown) or 'nothing'}"
        else:
            structs[name] = {
                int(number): f"{requiredness or 'default'} {_squeezed(kind)} {field}"
                for number, requiredness, kind, field in _FIELD.findall(body)
            }
    return Contract(structs, enums, methods)


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", " ", text.strip())


def incompatible_changes(before: Contract, now: Contract) -> list[str]:
    """Return a sentence for each change that a peer with the contract `before` cannot live with."""
    return [*_struct_changes(before, now), *_enum_changes(before, now), *_method_changes(before, now)]


def _struct_changes(before: Contract, now: Contract) -> Iterator[str]:
    for struct, fields in now.structs.items():
        old = before.structs.get(struct, {})
        for number, field in fields.items():
            requiredness, _, name = field.split(" ", 1)[0], *field.rsplit(" ", 1)
            if number not in old and requiredness != "optional":
                yield f"{struct}.{name}: a new field must be optional, because older peers do not send it"
            if number not in old and any(other.rsplit(" ", 1)[1] == name for other in old.values()):
                yield f"{struct}.{name}: its number was changed to {number}; a field keeps its number"
    for struct, old in before.structs.items():
        if struct not in now.structs:
            yield f"{struct}: this struct was removed or renamed; older peers still use it"
            continue
        for number, field in old.items():
            name, found = field.rsplit(" ", 1)[1], now.structs[struct].get(number)
            if found is None:
                yield f"{struct}.{name}: field {number} was removed; older peers still send or expect it"
            elif found != field:
                yield f"{struct}.{name}: field {number} was '{field}' and is now '{found}'; add a field with a new number"


def _enum_changes(before: Contract, now: Contract) -> Iterator[str]:
    for enum, values in before.enums.items():
        for number, name in values.items():
            found = now.enums.get(enum, {}).get(number)
            if found != name:
                yield f"{enum}.{name}: the value {number} is now {found or 'missing'}; older peers still use it"
        for number, name in now.enums.get(enum, {}).items():
            if number not in values and enum != "ErrorCode":
                yield f"{enum}.{name}: a new value cannot be read by older peers; add a field instead"


def _method_changes(before: Contract, now: Contract) -> Iterator[str]:
    for method, signature in before.methods.items():
        found = now.methods.get(method)
        if found is None:
            yield f"{method}: this method was removed or renamed; older peers still call it"
        elif found != signature:
            yield f"{method}: it was '{signature}' and is now '{found}'; older peers expect the former"


def additions(before: Contract, now: Contract) -> tuple[dict[str, set[str]], set[str]]:
    """Return the names of the fields that `now` adds to structs of `before`, by struct, and the names of the methods."""
    added: dict[str, set[str]] = {}
    for struct, old in before.structs.items():
        names = {field.rsplit(" ", 1)[1] for number, field in now.structs.get(struct, {}).items() if number not in old}
        if names:
            added[struct] = names
    return added, set(now.methods) - set(before.methods)


# ------------------------------------------------------------------ recorded form


def render_recorded(contract: Contract) -> str:
    """Return the contract as JSON with a line for each field; see `parse_recorded`."""
    fields = {"structs": contract.structs, "enums": contract.enums, "methods": contract.methods}
    return json.dumps(fields, indent=1, sort_keys=False) + "\n"


def parse_recorded(text: str) -> Contract:
    """Parse what `render_recorded` returned."""
    raw: dict[str, Any] = json.loads(text)
    numbered = {
        kind: {name: {int(number): value for number, value in fields.items()} for name, fields in raw[kind].items()}
        for kind in ("structs", "enums")
    }
    return Contract(numbered["structs"], numbered["enums"], raw["methods"])


def recorded_contracts() -> dict[int, Contract]:
    """Return the recorded contracts by their version."""
    return {int(file.stem): parse_recorded(file.read_text()) for file in sorted(RECORDED.glob("*.json"))}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--record", type=Path, metavar="FILE")
    parser.add_argument("--contract", type=Path, default=CONTRACT, help="another Thrift file")
    given = parser.parse_args(arguments)
    contract = parse_contract(given.contract.read_text())
    if given.record is not None:
        given.record.write_text(render_recorded(contract))
    problems = [
        f"{given.contract.name}, compared with contract {version}: {problem}"
        for version, before in recorded_contracts().items()
        for problem in incompatible_changes(before, contract)
    ]
    print("\n".join(problems), file=sys.stderr, end="\n" * bool(problems))
    return bool(given.check and problems)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
