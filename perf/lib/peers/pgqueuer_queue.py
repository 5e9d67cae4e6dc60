"""PgQueuer, a job queue in a Python library, on the same Postgres as the hand-written queue.

Always true: its tables are all logged (its durability `durable`) and it is used
through its public functions: enqueue, dequeue and log_jobs, which deletes done jobs and
records them in its log. Knows nothing of how load is offered or timed.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from perf.lib.by_hand import EMPTY_PAUSE_S, connect_postgres
from perf.lib.caller import NOTHING, Batch, Caller, Put, Taken, all_durable
from perf.lib.payload import NUMBER_BYTES, filler, numbered


async def prepare(place: str) -> None:
    """Create the tables."""
    from pgqueuer.queries import Queries

    connection = await connect_postgres(place)
    await Queries.from_asyncpg_connection(connection).install()
    await connection.close()


async def fill(place: str, count: int, payload_bytes: int) -> None:
    """Write `count` jobs of topic t0, numbered from 0, as the database's own copies of one that was enqueued."""
    from pgqueuer.queries import Queries

    connection = await connect_postgres(place)
    rest = filler(payload_bytes)
    await Queries.from_asyncpg_connection(connection).enqueue("t0", numbered(0, rest))
    await connection.execute(
        "INSERT INTO pgqueuer (priority, status, entrypoint, payload, execute_after) "
        "SELECT job.priority, job.status, job.entrypoint, "
        f"convert_to(lpad(number::text, {NUMBER_BYTES}, '0') || '{rest.decode()}', 'UTF8'), job.execute_after "
        f"FROM pgqueuer AS job, generate_series(1, {count - 1}) AS number"
    )
    await connection.execute("ANALYZE pgqueuer")
    await connection.close()


async def pgqueuer_caller(place: str, lease_s: float) -> Caller:
    return PgQueuerCaller(await connect_postgres(place), lease_s)


class PgQueuerCaller:
    """One connection."""

    def __init__(self, connection: Any, lease_s: float) -> None:
        from pgqueuer.ports.repository import EntrypointExecutionParameter
        from pgqueuer.queries import Queries

        self._connection = connection
        self._queries = Queries.from_asyncpg_connection(connection)
        self._manager = uuid.uuid4()
        self._lease = timedelta(seconds=lease_s)
        self._no_limit = EntrypointExecutionParameter(0)

    async def put(self, items: Batch) -> Put:
        if len(items.payloads) == 1:
            await self._queries.enqueue(items.topics[0], items.payloads[0])
        else:
            await self._queries.enqueue(list(items.topics), list(items.payloads), [0] * len(items.payloads))
        return all_durable(items)

    async def take(self, wants: Mapping[str, int], wait_ms: int) -> Taken:
        found = await self._queries.dequeue(
            sum(wants.values()), dict.fromkeys(wants, self._no_limit), self._manager, None, self._lease
        )
        if not found:
            await asyncio.sleep(EMPTY_PAUSE_S)
            return NOTHING
        return found, [job.payload for job in found]

    async def done(self, handles: Sequence[Any]) -> None:
        await self._queries.log_jobs([(job, "successful", None) for job in handles])

    async def close(self) -> None:
        await self._connection.close()
