"""Tests of the entry of a host's versions."""

from __future__ import annotations

import json

import pytest

from shardmgr.cluster_reader import ClusterReading
from shardmgr.model import MalformedDocument, Member, Plan
from shardmgr.versions import (
    HostVersions,
    distant_hosts,
    hosts_without_format,
    older_hosts,
    parse_versions,
    render_versions,
)

VERSIONS = HostVersions("0.2.0", 8, 1, 2)


def test_an_entry_is_read_as_it_was_written() -> None:
    assert parse_versions(render_versions(VERSIONS)) == VERSIONS


def test_fields_of_a_later_version_are_ignored() -> None:
    later = json.loads(render_versions(VERSIONS)) | {"compression": ["zstd"]}
    assert parse_versions(json.dumps(later).encode()) == VERSIONS


@pytest.mark.parametrize("name", ["format", "program", "schema", "documents", "wire"])
def test_a_missing_or_renamed_field_is_refused(name: str) -> None:
    document = json.loads(render_versions(VERSIONS))
    document[f"new_{name}"] = document.pop(name)
    with pytest.raises(MalformedDocument, match=name):
        parse_versions(json.dumps(document).encode())


def test_a_member_without_the_version_is_older() -> None:
    members = [Member(name, name, "a:1", "default") for name in ("a", "b", "c")]
    reading = ClusterReading(None, Plan(), None, members, {"odd": "it is malformed"})
    found = {"a": VERSIONS, "c": HostVersions("0", 7, 1, 1), "gone": VERSIONS}
    assert older_hosts(reading, found, 8) == ["b", "c", "odd"]
    assert older_hosts(reading, found, 7) == ["b", "odd"]


def test_a_member_that_does_not_announce_a_format_does_not_read_it() -> None:
    members = [Member(name, name, "a:1", "default") for name in ("a", "b", "c")]
    reading = ClusterReading(None, Plan(), None, members, {"odd": "it is malformed"})
    found = {"a": HostVersions("0.2.0", 8, 2, 2), "c": VERSIONS}
    assert hosts_without_format(reading, found, 2) == ["b", "c", "odd"]
    assert hosts_without_format(reading, found, 1) == ["odd"]


def test_members_are_distant_if_a_number_differs_by_more_than_one() -> None:
    members = [Member(name, name, "a:1", "default") for name in ("a", "b", "c", "unannounced")]
    reading = ClusterReading(None, Plan(), None, members, {})
    near = {"a": VERSIONS, "b": HostVersions("0.3.0", 9, 2, 3), "c": HostVersions("0.1.9", 7, 0, 1)}
    assert distant_hosts(reading, near, VERSIONS) == []
    far = [HostVersions("0.3.1", 8, 1, 4), HostVersions("0.4.0", 10, 1, 2), HostVersions("0.5.0", 8, 3, 2)]
    assert distant_hosts(reading, dict(zip("cab", far, strict=True)), VERSIONS) == far
    [first] = distant_hosts(reading, dict.fromkeys("abc", far[0]), far[0])
    assert (first.program, first.schema) == ("0.1.0", 7)
