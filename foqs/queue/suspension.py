"""The suspension of a host: it delivers nothing for now, because its shards may soon belong to another host."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Suspension:
    """Says whether the host is suspended. The queue sets it, and all parts that deliver read it. Other calls are served."""

    is_on: bool = False
