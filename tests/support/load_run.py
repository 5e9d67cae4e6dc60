"""The end of a run with real processes: heal, drain, read the tables, check.

Holds also the bounds for the histories. Knows nothing of the faults.
"""

from __future__ import annotations

import asyncio
from typing import Final

from foqs_client import Client
from tests.support.checker import check
from tests.support.clock_bounds import ClockBounds
from tests.support.history import History
from tests.support.item_account import ItemAccount, account
from tests.support.processes import BACKOFF_MS_MAX, LEASE_MS_DEFAULT, RestartableHost
from tests.support.tables import Tables
from tests.support.workload import TOPICS, Load

BOUNDS: Final = ClockBounds(
    lease_ms_default=LEASE_MS_DEFAULT,
    attempts_max_default=0,
    backoff_ms_max=BACKOFF_MS_MAX,
    slew_ms=50,
    slew_ratio=0.05,
    late_ms=2_000,
    bound_ms=5_000,
)
"""Of `clock_slew_permille`; and `clock_skew_ms_max` for each of some takeovers in a row, of which the slewing wins back
only a part. A slow answer at a takeover is a late clock, too."""

_SHOWN: Final = 5


async def stop_and_drain(load: Load, host: RestartableHost, history: History) -> bool:
    """Ends the load, notes that all is well, and drains; False when something stayed behind."""
    await load.stop()
    await asyncio.to_thread(host.wait_until_ready)
    async with Client(host.address) as client:
        # A peek is read from every shard between two flushes: no earlier call can take effect after it.
        await client.peek(TOPICS[0])
    history.healed()
    return await load.drain()


def check_run(history: History, tables: Tables, drained: bool) -> ItemAccount:
    """The run's account, when no invariant is violated; the tables, whose hosts have stopped, are its end."""
    history.present(tables.rows())
    violations = check(history.events, BOUNDS)
    assert not violations, _some([str(violation) for violation in violations])
    assert drained, "something stayed behind that is neither dead nor for much later"
    found = account(history.events)
    assert not found.wrong, _some(found.wrong)
    assert found.removed + found.present + found.vague == found.acknowledged
    return found


def _some(stories: list[str]) -> str:
    return "\n\n".join([*stories[:_SHOWN], f"{len(stories)} in all"])
