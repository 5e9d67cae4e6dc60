"""Makes a reference page of the contract thrift/foqs.thrift: its calls, types and comments.

Reads the subset of Thrift that the contract uses. Anything else raises
Unreadable, so that nothing is left out silently. Knows nothing of what the
calls do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

_COMMENT: Final = re.compile(r"/\*\*(.*?)\*/", re.DOTALL)
_TITLE: Final = re.compile(r"// -{3,} (.+)")
_BEGIN: Final = re.compile(r"(enum|struct|exception|service) (\w+) \{")
_VALUE: Final = re.compile(r"(\w+) = (\d+),?")
_FIELD: Final = re.compile(r"(\d+): optional ([\w<>, ]+) (\w+),?")
_CALL: Final = re.compile(r"(\w+) (\w+)\(1: (\w+) request\) throws \(1: (\w+) failed\),?")
_NAMESPACE: Final = re.compile(r"namespace \w+ [\w.]+")


class Unreadable(Exception):
    """The contract has a line that this reader does not understand."""


@dataclass(frozen=True)
class Member:
    """One value of an enum, one field of a struct or exception, or one call of a service."""

    name: str
    comment: str
    number: str = ""
    type: str = ""
    """The type of a field, or of a call's reply."""
    request: str = ""
    error: str = ""


@dataclass(frozen=True)
class Block:
    """An enum, a struct, an exception or a service."""

    kind: str
    name: str
    comment: str
    title: str
    """The heading above it in the contract."""
    members: list[Member] = field(default_factory=list)


@dataclass(frozen=True)
class Contract:
    comment: str
    blocks: list[Block]


def read(text: str) -> Contract:
    """Return the declarations of the contract in its order. Raises Unreadable."""
    opening, comment, title = "", "", ""
    blocks: list[Block] = []
    block: Block | None = None
    for number, part in _parts(text):
        if found := _COMMENT.fullmatch(part):
            comment = _plain(found[1])
            continue
        if _NAMESPACE.fullmatch(part):
            opening, comment = opening or comment, ""
            continue
        if block is None and (found := _TITLE.fullmatch(part)):
            title = found[1].strip()
        elif part.startswith("//"):
            continue  # a note for editors of the contract, not for its readers
        elif block is None and (found := _BEGIN.fullmatch(part.removesuffix("}"))):
            block = Block(found[1], found[2], comment, title)
            blocks.append(block)
            block = None if part.endswith("}") else block
        elif block is not None and part == "}":
            block = None
        elif block is not None and (member := _member(block.kind, part, comment)):
            block.members.append(member)
        else:
            raise Unreadable(f"line {number}: {part!r} is not a line that tools/docs_thrift.py knows; teach it")
        comment = ""
    return Contract(opening, blocks)


def markdown(contract: Contract) -> str:
    """Return the page: the calls first, then the types as the contract groups them."""
    known = {block.name for block in contract.blocks}
    lines = _paragraph(contract.comment)
    for block in contract.blocks:
        if block.kind == "service":
            lines += [f"## Calls of the service {block.name}", "", *_paragraph(block.comment)]
            for call in block.members:
                lines += [f"### {call.name} {{ #call-{call.name} }}", ""]
                lines += [
                    f"{_type(call.request, known)} → {_type(call.type, known)}, or {_type(call.error, known)}",
                    "",
                ]
                lines += _paragraph(call.comment)
    title = None
    for block in contract.blocks:
        if block.kind == "service":
            continue
        if block.title != title:
            title = block.title
            lines += [f"## Types: {title}" if title else "## Types: errors", ""]
        lines += [f"### {block.name} {{ #{block.name} }}", "", *_paragraph(block.comment), *_table(block, known)]
    return "\n".join(lines)


def _parts(text: str) -> Iterator[tuple[int, str]]:
    """Yield each comment, and each line outside comments, with the number of its first line."""
    place = 0
    while place < len(text):
        if found := re.compile(r"\s+").match(text, place):
            place = found.end()
            continue
        number = text.count("\n", 0, place) + 1
        found = _COMMENT.match(text, place) or re.compile(r"[^\n]+").match(text, place)
        assert found is not None
        yield number, found[0].strip()
        place = found.end()


def _member(kind: str, part: str, comment: str) -> Member | None:
    if kind == "enum":
        found = _VALUE.fullmatch(part)
        return Member(found[1], comment, number=found[2]) if found else None
    if kind == "service":
        found = _CALL.fullmatch(part)
        return Member(found[2], comment, type=found[1], request=found[3], error=found[4]) if found else None
    found = _FIELD.fullmatch(part)
    return Member(found[3], comment, number=found[1], type=found[2]) if found else None


def _plain(comment: str) -> str:
    """Return the text of a comment without the stars, and with an empty line before a list."""
    lines = [re.sub(r"^\s*\* ?", "", line).rstrip() for line in comment.strip().splitlines()]
    text: list[str] = []
    for line in lines:
        if line.lstrip().startswith("- ") and text and text[-1] and not re.match(r"\s*- |\s{2,}", text[-1]):
            text.append("")
        text.append(line)
    return "\n".join(text)


def escaped(text: str) -> str:
    """Return a comment as Markdown without HTML."""
    return "`".join(
        part if place % 2 else part.replace("&", "&amp;").replace("<", "&lt;")
        for place, part in enumerate(text.split("`"))
    )


def _paragraph(comment: str) -> list[str]:
    return [escaped(comment), ""] if comment else []


def _table(block: Block, known: set[str]) -> Iterator[str]:
    if not block.members:
        yield from ("No fields.", "")
        return
    if block.kind == "enum":
        yield from ("| value | name | meaning |", "|---|---|---|")
        for member in block.members:
            yield f"| {member.number} | `{member.name}` | {_cell(member.comment)} |"
    else:
        yield from ("| id | field | type | meaning |", "|---|---|---|---|")
        for member in block.members:
            yield f"| {member.number} | `{member.name}` | {_type(member.type, known)} | {_cell(member.comment)} |"
    yield ""


def _cell(comment: str) -> str:
    paragraphs = [" ".join(paragraph.split()) for paragraph in comment.split("\n\n")]
    return "<br><br>".join(escaped(paragraph) for paragraph in paragraphs).replace("|", "\\|")


def _type(name: str, known: set[str]) -> str:
    """Return a type in which each declared name is a link."""
    return re.sub(
        r"\w+", lambda word: f"[{word[0]}](#{word[0]})" if word[0] in known else word[0], name.replace("<", "&lt;")
    )
