"""What doctor says about the journals of a running host's shards."""

from __future__ import annotations

from foqs.cli.doctor.journal_checks import journal_findings

CALM = {"dirty_items": 3, "rows": 2, "bytes": 1 << 20, "lag_seconds": 0.0, "refused_items": 0}


def test_host_whose_shards_do_not_journal_has_no_finding() -> None:
    assert journal_findings({}) == []


def test_journals_whose_rows_are_written_in_time_are_summed_up() -> None:
    (found,) = journal_findings({"0": CALM, "1": CALM | {"rows": 1, "lag_seconds": 2.5}})
    assert (found.state, found.remedy) == ("ok", "")
    assert found.detail == (
        "2 shards: 6 items without current rows in 3 flushes of 2.0 MiB; the oldest row is 2.5 s late"
    )


def test_shards_whose_write_back_stands_still_are_named_with_their_contents_and_a_remedy() -> None:
    late = CALM | {"lag_seconds": 61.0, "refused_items": 1}
    (found,) = journal_findings({"0": CALM, **{str(shard): late for shard in range(1, 6)}})
    assert found.state == "warning"
    assert "shard 1 has 3 items without current rows in 2 flushes of 1.0 MiB, and rows have been due for 61 s" in (
        found.detail
    )
    assert "shard 0" not in found.detail
    assert found.detail.endswith("; and 2 more")
    assert "make room" in found.remedy and "FoqsJournalLags" in found.remedy


def test_rows_that_the_database_refuses_are_a_warning() -> None:
    (found,) = journal_findings({"0": CALM, "7": CALM | {"refused_items": 2}})
    assert (found.state, "2 items of shard 7" in found.detail, "mend the table" in found.remedy) == (
        "warning",
        True,
        True,
    )
