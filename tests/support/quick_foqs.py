"""The program `foqs`, whose hosts have other constants: `python -m tests.support.quick_foqs CONSTANTS ARGUMENT...`.

CONSTANTS is JSON, by part of `HostConstants`: `{"shard": {"retry_ms_max": 200}}`. The part `journal` has
`write_back_after_ms`, and `memory_bytes_max` of the host.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from foqs.cli import main
from foqs.core.journal.journal_budget import JournalBudget
from foqs.host_constants import HOST_CONSTANTS
from foqs.store import factories
from foqs.store.journaled.journal_settings import JournalSettings

_QUICK: Final[Mapping[str, Mapping[str, Any]]] = {"shard": {"retry_ms_max": 200, "sweep_interval_ms": 1_000}}
"""Quick to retry and to look again, as a test has seconds where a service has hours."""


def quick_foqs(**parts: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the command of a `foqs` whose hosts are quick to retry. `parts`: more constants, by part."""
    constants = {part: {**_QUICK.get(part, {}), **parts.get(part, {})} for part in _QUICK.keys() | parts.keys()}
    return (sys.executable, "-m", __name__, json.dumps(constants))


if __name__ == "__main__":
    given = json.loads(sys.argv.pop(1))
    journal = given.pop("journal", {})
    if "write_back_after_ms" in journal:
        vars(factories)["WRITE_BACK_AFTER_MS"] = journal["write_back_after_ms"]
    if "memory_bytes_max" in journal:
        vars(factories)["JournalSettings"] = partial(JournalSettings, budget=JournalBudget(journal["memory_bytes_max"]))
    main(replace(HOST_CONSTANTS, **{part: replace(getattr(HOST_CONSTANTS, part), **given[part]) for part in given}))
