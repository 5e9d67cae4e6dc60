"""The findings of checks of a host or a cluster, and the checks that `foqs doctor` and the console share.

Always true: a finding that is not ok says what to do. Knows nothing of how findings are shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

from foqs.core.items.item import EPOCH_MAX
from foqs_contract.plurals import counted

Health: TypeAlias = Literal["ok", "warning", "bad"]
_SHOWN_MAX: Final = 5

EPOCHS_USED_WARNING: Final = 0.9
"""From this part of its epochs on, a shard should be replaced. It has a million, for one owner after the other."""


@dataclass(slots=True, frozen=True)
class Finding:
    """The result of one check; `remedy` says what to do, unless it is ok."""

    check: str
    state: Health
    detail: str
    remedy: str = ""


class ShardState(Protocol):
    """The part of a shard that the checks read."""

    @property
    def shard(self) -> int: ...
    @property
    def state(self) -> str | None: ...
    @property
    def reason(self) -> str | None: ...
    @property
    def epoch(self) -> int | None: ...


def served_shards_finding(shards: Sequence[ShardState]) -> Finding:
    """Check whether each shard of the cluster is served."""
    idle = [shard for shard in shards if shard.state != "owned"]
    if not shards:
        return Finding(
            "Cluster shards", "bad", "there is no shard", "add one with foqs shard add NUMBER --database NAME"
        )
    if not idle:
        return Finding("Cluster shards", "ok", f"all {len(shards)} are served")
    described = ", ".join(
        f"shard {shard.shard} ({shard.state}{': ' if shard.reason else ''}{shard.reason or ''})"
        for shard in idle[:_SHOWN_MAX]
    )
    more = f", and {len(idle) - _SHOWN_MAX} more" if len(idle) > _SHOWN_MAX else ""
    remedy = "repeat this in a few seconds; then run foqs doctor --config FILE on a host that should serve it"
    return Finding("Cluster shards", "bad", f"{len(idle)} of {len(shards)} are not served: {described}{more}", remedy)


def used_epochs_finding(shards: Sequence[ShardState]) -> Finding | None:
    """Return a warning if shards have used most of their epochs: with none left they get no owner."""
    worn = {shard.shard: shard.epoch or 0 for shard in shards if (shard.epoch or 0) > EPOCHS_USED_WARNING * EPOCH_MAX}
    if not worn:
        return None
    described = ", ".join(f"shard {number} ({epoch:,})" for number, epoch in list(worn.items())[:_SHOWN_MAX])
    return Finding(
        "Epochs",
        "warning",
        f"{counted(len(worn), 'shard has', 'shards have')} used most of {EPOCH_MAX:,} epochs: {described}",
        "find in the logs why they change their owner so often; replace them with foqs shard add and foqs shard drain",
    )


def duplicate_names_sentence(names: Iterable[str]) -> str:
    """Return a sentence about hosts with the same name; empty if there are none."""
    counts = Counter(names)
    shared = ", ".join(sorted(name for name, count in counts.items() if count > 1))
    return (
        f"Several hosts are named {shared}. A dead host disappears within its session timeout; running hosts need "
        "different names: set server.name."
        if shared
        else ""
    )


def duplicate_names_finding(sentence: str) -> Finding:
    """Return the finding of `duplicate_names_sentence`."""
    found, _, remedy = sentence.partition(". ")
    return Finding("Cluster hosts", "warning", found, remedy)
