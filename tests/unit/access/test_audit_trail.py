"""The trail of changes: bounded, shared among principals, and a line of the log for each change."""

from __future__ import annotations

import logging

import pytest

from foqs.access.audit_trail import (
    ENTRIES_MAX,
    REFUSED_LINES_PER_SECOND_MAX,
    AuditRecord,
    AuditTrail,
    choose_newest,
    share_of,
)


def entry(at_ms: int, principal: str | None = "ops", outcome: str = "OK") -> AuditRecord:
    return AuditRecord(at_ms, principal, "console 10.0.0.1", "pauseTopic", "orders", "topic=mail", outcome)


def share(found: AuditRecord) -> tuple[str | None, bool]:
    return share_of(found.principal, found.outcome)


def lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return the lines of the audit. Something that a test before this one left may write to the log too."""
    return [record for record in caplog.records if record.name == "foqs.audit"]


def test_trail_is_bounded_and_writes_a_line_for_each_change(caplog: pytest.LogCaptureFixture) -> None:
    trail = AuditTrail()
    with caplog.at_level("INFO", "foqs.audit"):
        for number in range(ENTRIES_MAX + 5):
            trail.record(entry(number))
    assert [found.at_ms for found in trail.newest()] == list(range(ENTRIES_MAX + 4, 4, -1))
    written = lines(caplog)
    assert len(written) == ENTRIES_MAX + 5
    assert written[0].getMessage() == "pauseTopic: OK"
    assert vars(written[0])["principal"] == "ops"


@pytest.mark.parametrize("outcome", ["OK", "PERMISSION_DENIED"])
def test_entries_of_one_principal_displace_nobody_elses(outcome: str) -> None:
    trail = AuditTrail()
    for number in range(10):
        trail.record(entry(number))
    for number in range(3 * ENTRIES_MAX):
        trail.record(entry(10 + number, "eve", outcome))
    kept = list(trail.newest())
    assert len(kept) == ENTRIES_MAX
    assert [found.at_ms for found in kept if found.principal == "ops"] == list(range(9, -1, -1))
    assert [found.at_ms for found in kept[:3]] == [3 * ENTRIES_MAX + 9, 3 * ENTRIES_MAX + 8, 3 * ENTRIES_MAX + 7]


def test_refused_calls_of_a_principal_hide_none_of_its_changes() -> None:
    trail = AuditTrail()
    trail.record(entry(0, "eve"))
    trail.record(entry(1, "eve", "UNKNOWN_OUTCOME"))
    for number in range(2 * ENTRIES_MAX):
        trail.record(entry(2 + number, "eve", "INVALID_ARGUMENT"))
    assert [found.at_ms for found in trail.newest()][-2:] == [1, 0]


def test_lines_about_refused_calls_of_a_principal_are_limited(caplog: pytest.LogCaptureFixture) -> None:
    trail = AuditTrail()
    with caplog.at_level("INFO", "foqs.audit"):
        for second in range(3):
            for _ in range(100):
                trail.record(entry(second * 1_000, "eve", "PERMISSION_DENIED"))
            trail.record(entry(second * 1_000, "ann", "PERMISSION_DENIED"))
            trail.record(entry(second * 1_000, "eve"))
    assert len(lines(caplog)) == 3 * (REFUSED_LINES_PER_SECOND_MAX + 2)


def test_page_that_is_too_short_has_a_part_for_each_principal() -> None:
    entries = [
        *(entry(n, "eve", "PERMISSION_DENIED") for n in range(100, 50, -1)),
        *(entry(n) for n in range(5, 0, -1)),
    ]
    assert [found.at_ms for found in choose_newest(entries, 6, share)] == [100, 99, 98, 5, 4, 3]
    assert [found.at_ms for found in choose_newest(entries, 20, share)] == [*range(100, 85, -1), 5, 4, 3, 2, 1]
    assert choose_newest(entries, 1_000, share) == entries
