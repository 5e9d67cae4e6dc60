"""Tests of the reference page of the Thrift calls, with small contracts."""

from __future__ import annotations

import pytest

from tools import docs_thrift

CONTRACT = """\
/**
 * What it is.
 * Conventions:
 *  - one, which
 *    goes on
 *  - two
 */

namespace py somewhere.idl

/** Why. */
enum Reason {
  /** Too `a < b`. */
  TOO_MUCH = 1,
  // A note.
  OTHER = 2,
}

// ------------- the things

/** A thing
 * of two lines. */
struct Thing {
  1: optional string name,
  /**
   * First | paragraph.
   *
   * Second <paragraph>.
   */
  2: optional map<string, list<Reason>> reasons,
}

struct Empty {}

exception Failed {
  1: optional Reason reason,
}

service Shop {
  /** Gets it. */
  Thing get(1: Empty request) throws (1: Failed failed),
  Empty drop(1: Thing request) throws (1: Failed failed),
}
"""


def test_everything_is_read_with_its_comment() -> None:
    contract = docs_thrift.read(CONTRACT)
    assert contract.comment == "What it is.\nConventions:\n\n - one, which\n   goes on\n - two"
    assert [(block.kind, block.name, block.comment, block.title) for block in contract.blocks] == [
        ("enum", "Reason", "Why.", ""),
        ("struct", "Thing", "A thing\nof two lines.", "the things"),
        ("struct", "Empty", "", "the things"),
        ("exception", "Failed", "", "the things"),
        ("service", "Shop", "", "the things"),
    ]
    reason, thing, empty, _, shop = contract.blocks
    assert [(member.name, member.number, member.comment) for member in reason.members] == [
        ("TOO_MUCH", "1", "Too `a < b`."),
        ("OTHER", "2", ""),
    ]
    assert [(member.name, member.type) for member in thing.members] == [
        ("name", "string"),
        ("reasons", "map<string, list<Reason>>"),
    ]
    assert empty.members == []
    assert [(call.name, call.request, call.type, call.error, call.comment) for call in shop.members] == [
        ("get", "Empty", "Thing", "Failed", "Gets it."),
        ("drop", "Thing", "Empty", "Failed", ""),
    ]


def test_the_page_links_types_and_shows_comments_as_they_are() -> None:
    lines = docs_thrift.markdown(docs_thrift.read(CONTRACT)).splitlines()
    assert "### get { #call-get }" in lines
    assert "[Empty](#Empty) → [Thing](#Thing), or [Failed](#Failed)" in lines
    assert "| 1 | `TOO_MUCH` | Too `a < b`. |" in lines
    assert (
        "| 2 | `reasons` | map&lt;string, list&lt;[Reason](#Reason)>> | First \\| paragraph.<br><br>Second &lt;paragraph>. |"
        in lines
    )
    assert (
        lines.index("## Calls of the service Shop")
        < lines.index("## Types: errors")
        < lines.index("## Types: the things")
    )


@pytest.mark.parametrize(
    ("old", "new", "number"),
    [
        ("1: optional string name", "1: required string name", 24),
        ("struct Empty {}", "union Empty {}", 33),
        ("OTHER = 2", "OTHER", 16),
        ("Thing get(1: Empty request)", "Thing get()", 41),
        ("struct Empty {}", "const i32 MAX = 1", 33),
    ],
)
def test_a_line_of_another_form_is_refused_with_its_number(old: str, new: str, number: int) -> None:
    assert old in CONTRACT
    with pytest.raises(docs_thrift.Unreadable, match=f"line {number}: .* teach it"):
        docs_thrift.read(CONTRACT.replace(old, new))
