"""The cluster of a test, as `foqs dev --cluster` starts it, with short retries and fixed ports.

Its ZooKeeper and databases come from installed packages, or from containers in
`make test-containers` (see `containers`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from foqs.dev.local_cluster import INSTALLED, LocalCluster, Programs
from tests.support import containers
from tests.support.ports import free_port
from tests.support.quick_foqs import quick_foqs

_OPTIONS: Final[Mapping[str, Any]] = {
    "shard.breaker_latency_ms_max": 60_000,
    "namespace.lease_ms_default": 1_000,
    "namespace.backoff_ms_min": 50,
    "namespace.backoff_ms_max": 400,
}


def cluster(
    folder: Path | None = None,
    hosts: int = 3,
    databases: int = 2,
    shards: int = 8,
    options: Mapping[str, Any] = MappingProxyType({}),
    *,
    with_consoles: bool = False,
    with_sqs: bool = False,
) -> LocalCluster:
    """A cluster that is not started yet: use it in a `with` block. Its session timeout is the ordinary one."""
    given = {**_OPTIONS, **options}
    in_containers = Programs(lambda folder: containers.ZooKeeper(), lambda folder: containers.MariaDb())
    programs = replace(in_containers if containers.are_wanted() else INSTALLED, foqs=quick_foqs())
    return LocalCluster(folder, hosts, databases, shards, free_port, given, programs, with_consoles, with_sqs)
