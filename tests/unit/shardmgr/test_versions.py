"""Tests of the entry of a host's versions."""

from __future__ import annotations

import json

import pytest

from shardmgr.cluster_reader import ClusterReading
from shardmgr.model import MalformedDocument, Member, Plan
from shardmgr.versions import HostVersions, older_hosts, parse_versions, render_versions

VERSIONS = HostVersions("0.1.0", 8, 1, 2)


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
