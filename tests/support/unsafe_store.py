"""A host on SQLite that does not wait for the disk, which the durability tests must find.

Run it as a program, with `--config FILE` like `foqs host`. Always true: it is the
ordinary host except for `synchronous=OFF`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import foqs.host_run
from foqs.options.config import Config, load
from foqs.runtime.clock import Clock
from foqs.store import factories
from foqs.store.port import Store
from foqs.store.sqlite.sqlite_store import SqliteStore


def unsafe_store_factory(config: Config, clock: Clock) -> Callable[[int], Store]:
    """Return a store factory like `factories.local_store_factory`."""
    folder = Path(config.store.parsed_url.path)
    return lambda shard: SqliteStore(folder / f"shard-{shard}.db", shard, synchronous="OFF", unsafe_durability=True)


if __name__ == "__main__":
    factories.local_store_factory = unsafe_store_factory
    sys.exit(foqs.host_run.run_host(load(Path(sys.argv[2]), {}, {})))
