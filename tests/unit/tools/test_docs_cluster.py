"""Tests of docs/cluster.md: its commands and their options exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Final

from tests.unit.options.test_config_examples import assert_exists

DOCUMENT: Final = (Path(__file__).parents[3] / "docs" / "cluster.md").read_text()


def test_every_command_of_the_document_exists() -> None:
    found = re.findall(r"`(foqs [^`]+)`|^(foqs .*?)(?:  +#.*)?$", DOCUMENT, re.MULTILINE)
    lines = {inline or block for inline, block in found}
    assert len(lines) > 20
    for line in sorted(lines):
        assert_exists([word for word in shlex.split(line)[1:] if word != ">"])


def test_every_state_that_a_shard_can_have_is_explained() -> None:
    from shardmgr.ownership import OwnershipState

    rows = re.findall(r"^\| (\w+) \| .+ \|$", DOCUMENT.partition("| state | what it means |")[2], re.MULTILINE)
    assert set(rows) == {state.value for state in OwnershipState}
