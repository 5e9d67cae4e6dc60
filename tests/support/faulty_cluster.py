"""A real cluster with faults under load, and the proof that nothing was lost.

Holds real hosts, ZooKeeper and databases, a proxy between each host and ZooKeeper,
and triggers that record commits. The servers are installed ones, as they are stopped
and started again on their ports. Always true: a test begins and ends with every
shard served and all tables empty, and its whole history is checked. Knows nothing
of the faults.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import uvloop

from foqs.dev.host_process import PROGRAM, HostProcess, to_toml
from foqs.dev.local_cluster import DATABASE, LocalCluster, Programs
from foqs.dev.mariadb_server import MariaDb
from foqs.dev.zookeeper_server import ZooKeeper
from foqs_client import Client, FoqsError, Routing
from perf.lib.report import percentile
from tests.support.audit import Audit, Audited
from tests.support.checker import check_histories
from tests.support.client_records import write_client_records
from tests.support.clock_bounds import ClockBounds
from tests.support.dropping_process import DroppingProcess
from tests.support.freezing import freeze, thaw
from tests.support.history import CallEnd, History, machine_clock_ms, read
from tests.support.item_account import ItemAccount, account
from tests.support.item_histories import ItemHistories, sort_by_item
from tests.support.open_load import OpenLoad
from tests.support.poll import PAUSE_S, until
from tests.support.ports import free_port
from tests.support.prober import PROCESS, Prober
from tests.support.repeats import NO_CAUSE, acked_twice, owner_changes, repeats
from tests.support.tables import Tables

SHARDS: Final = 8
BACKGROUND_TOPIC: Final = "background"
"""A topic that no load uses: its items are in the tables before a story, and stay there."""
OF_THE_LOAD: Final = f"namespace = 'default' AND topic <> '{BACKGROUND_TOPIC}'"
BOUNDS: Final = ClockBounds(
    attempts_max_default=0,
    slew_ms=50,
    slew_ratio=0.05,
    late_ms=5_000,
)
RECORDS: Final = os.environ.get("FOQS_TEST_RECORDS")
"""A folder for the records of each story, which `foqs spark measures` reads; None: they are not kept."""
_ROUTING_MS: Final = 3_000
_SETTLE_S: Final = 90.0


class FaultyCluster:
    """Three hosts, two databases, eight shards; a context manager.

    Args:
        options: of every host's configuration, by dotted name.
        database: makes a database in a folder.
        foqs: the program of the hosts.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        database: Callable[[Path], MariaDb] = lambda folder: MariaDb(folder, free_port()),
        foqs: Sequence[str] = PROGRAM,
    ) -> None:
        self.cluster: Final[LocalCluster] = LocalCluster(
            shards=SHARDS,
            port=free_port,
            options={"log.level": "info", **options},
            programs=Programs(lambda folder: ZooKeeper(folder, free_port()), database, foqs),
        )
        self._stack = ExitStack()
        self.slots: dict[int, int] = {}
        self.databases: dict[int, MariaDb] = {}
        """By shard."""
        self.proxies: dict[str, DroppingProcess] = {}
        """By the name of the host."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for host in self.cluster.hosts:
                proxy = stack.enter_context(DroppingProcess(self.cluster.zookeeper.port))
                self.proxies[name_of(host)] = proxy
                host.options["cluster.zookeeper"] = proxy.hosts
                host.config.write_text(to_toml(host.options))
            stack.enter_context(self.cluster)
            until(self.is_settled, "every shard is served, and keys have their slots", _SETTLE_S)
            seen: list[Routing | None] = []

            def is_known() -> bool:
                seen.append(self.routing())
                return seen[-1] is not None and all(shard.key_slots for shard in seen[-1].shards)

            until(is_known, "a host replies again")
            routing = seen[-1]
            assert routing is not None
            by_name = {f"db{number}": server for number, server in enumerate(self.cluster.databases, 1)}
            for shard in asyncio.run(_shards(self.cluster.url)):
                self.databases[shard[0]] = by_name[shard[1]]
            self.slots = {shard.shard: shard.key_slots[0] for shard in routing.shards}
            self.audit = Audit({shard: (server, DATABASE) for shard, server in self.databases.items()})
            self.audit.install()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.explain(error)
        self._stack.close()

    def explain(self, error: BaseException) -> None:
        """Add the hosts' logs and the routing table to an error."""
        for host in self.cluster.hosts:
            error.add_note(f"the end of the log of {name_of(host)}:\n{host.log_tail()}")
        error.add_note(f"the routing table: {self.routing()}")

    # ------------------------------------------------------------------- looking

    def routing(self, *without: HostProcess) -> Routing | None:
        """Return the routing table from a host that is not one of these; None if no host replies."""
        return asyncio.run(_ask([host.address for host in self.cluster.hosts if host not in without]))

    def owners(self, *without: HostProcess) -> dict[int, str]:
        """Return the name of each shard's owner."""
        return _owners(self.routing(*without))

    def is_settled(self) -> bool:
        """All hosts are there, each serves its part, and no shard is on its way."""
        routing = self.routing()
        owners = [*_owners(routing).values()]
        share = SHARDS // len(self.cluster.hosts)
        return (
            routing is not None
            and len(routing.hosts) == len(self.cluster.hosts)
            and all(shard.key_slots for shard in routing.shards)
            and len(owners) == SHARDS
            and all(owners.count(name_of(host)) >= share for host in self.cluster.hosts)
        )

    def remaining_items(self) -> int:
        """How many items of the load are in the tables."""
        return sum(
            int(server.query(f"SELECT COUNT(*) FROM {DATABASE}.foqs_{shard}_item WHERE {OF_THE_LOAD}")[0][0])
            for shard, server in self.databases.items()
        )

    def host(self, name: str) -> HostProcess:
        return next(host for host in self.cluster.hosts if name_of(host) == name)

    def tables(self) -> Tables:
        def query(shard: int, text: str) -> Sequence[Sequence[Any]]:
            names = {"item": f"{DATABASE}.foqs_{shard}_item WHERE {OF_THE_LOAD}"}
            return self.databases[shard].query(text.format(**names))

        return Tables(range(SHARDS), query)


class FaultScenario:
    """One story.

    Args:
        rate: items a second.
        spoil: the share of deliveries that are not acked.
        load: more arguments of its `OpenLoad`.

    Attributes:
        report: the figures so far; `end` adds those of the load.
    """

    def __init__(
        self,
        on: FaultyCluster,
        rate: float,
        spoil: float = 0.05,
        seed: int = 1,
        bounds: ClockBounds = BOUNDS,
        **load: Any,
    ) -> None:
        self.on = on
        self._bounds = bounds
        self.history = History(machine_clock_ms, source="load")
        self.load = OpenLoad(on.cluster.url, self.history, on.slots, rate, seed, spoil, **load)
        self.prober = Prober(self.history, on.slots)
        self.report: dict[str, Any] = {"rate": rate}

    def play(self, story: Callable[[FaultScenario], Awaitable[None]], timeout_s: float) -> dict[str, Any]:
        """Runs the story under load, and proves that nothing was lost; the figures."""
        until(self.on.is_settled, "every shard is served", _SETTLE_S)
        asyncio.run(self._clear())
        self.on.audit.clear()
        gc.disable()  # the history only grows: looking for garbage in it stops everything for seconds
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._play(story, timeout_s))
            self.history.present(self.on.tables().rows())
            if RECORDS is not None:
                write_client_records(self.history.events, Path(RECORDS) / f"{time.time_ns()}.jsonl")
            return {**self.report, **self._proof(), **self._seen()}
        except Exception as error:
            self.on.explain(error)
            raise
        finally:
            gc.enable()

    async def _clear(self) -> None:
        """A story that failed has left items behind."""
        if await asyncio.to_thread(self.on.remaining_items):
            unread = History(machine_clock_ms, source="rest")
            await OpenLoad(self.on.cluster.url, unread, self.on.slots, 1.0, 0).drain(self.on.remaining_items)

    async def _play(self, story: Callable[[FaultScenario], Awaitable[None]], timeout_s: float) -> None:
        async with asyncio.timeout(timeout_s):
            await self.load.play(story(self))
            await self.wait_until_settled()
            await self.load.drain(self.on.remaining_items)
            self.history.healed()

    def _proof(self) -> dict[str, Any]:
        """Counts of a history in which nothing is wrong. Raises AssertionError."""
        book, found, repeated = check_history(self.history, self._bounds)
        audited: Audited = self.on.audit.check()
        for host in self.on.cluster.hosts:
            assert "Traceback" not in host.log_tail(), host.log_tail()
        tried = [entry for tries in book.by_mark.values() for entry in tries if entry.call.process != PROCESS]
        refused = Counter(str(entry.code) for entry in tried if entry.end is CallEnd.FAILED)
        gaps = [change.gap_ms for change in owner_changes(book)]
        assert min(gaps, default=1.0) > 0, "two owners took items of one shard at once"
        return {
            "acknowledged": found.acknowledged,
            "unknown": found.unknown,
            "refused": format_counts(refused),
            "errors": format_counts(_errors(book)),
            "acked": found.removed,
            "vague": found.vague,
            "repeats": sum(repeated.values()),
            "causes": format_counts(repeated),
            "epochs": audited.epochs,
            "audited_flushes": audited.flushes,
            "audited_writes": audited.writes,
            "gaps": len(gaps),
            "gap_least_s": rounded_s(min(gaps, default=0.0) / 1_000),
            "gap_most_s": rounded_s(max(gaps, default=0.0) / 1_000),
        }

    def _seen(self) -> dict[str, Any]:
        return {f"all_{name}": value for name, value in latencies(self.load, 0.0, float("inf")).items()}

    # -------------------------------------------------------- steps of a story

    async def wait_until_settled(self) -> None:
        await self.wait_until(self.on.is_settled, "every shard is served, each host its part")

    async def wait_until(
        self, condition: Callable[[], bool], what: str, timeout_s: float = _SETTLE_S, pause_s: float = PAUSE_S
    ) -> None:
        """See `tests.support.poll.until`."""
        await asyncio.to_thread(until, condition, what, timeout_s, pause_s)

    async def owned_by(self, host: HostProcess) -> list[int]:
        """The shards that it serves: some, once the hosts reply in time and it is there."""
        found: list[int] = []

        def owns_some() -> bool:
            found[:] = [shard for shard, name in self.on.owners().items() if name == name_of(host)]
            return bool(found)

        await self.wait_until(owns_some, f"{name_of(host)} serves shards")
        return found

    async def served_without(self, host: HostProcess, shards: Sequence[int], since_s: float) -> list[float]:
        """Seconds until each of these shards took an item at another host."""
        others = [f"127.0.0.1:{other.port}" for other in self.on.cluster.hosts if other is not host]
        return [*(await self.prober.served(shards, others, since_s)).values()]

    async def killed(self, host: HostProcess) -> None:
        """It is dead, and was waited for."""
        await asyncio.to_thread(host.stop, signal.SIGKILL)

    async def frozen(self, host: HostProcess) -> None:
        await asyncio.to_thread(freeze, host.pid)

    async def thawed(self, host: HostProcess) -> None:
        await asyncio.to_thread(thaw, host.pid)


def check_history(history: History, bounds: ClockBounds = BOUNDS) -> tuple[ItemHistories, ItemAccount, Counter[str]]:
    """Return the items of a history, their account, and the causes of repeats. Raises AssertionError if anything is wrong."""
    book = sort_by_item(read(history.events))
    violations = check_histories(book, bounds)
    assert not violations, "\n\n".join(str(violation) for violation in violations[:5])
    assert book.record.present == {}, "something stayed behind"
    found = account(history.events)
    assert not found.wrong, "\n\n".join(found.wrong[:5])
    twice = acked_twice(book)
    assert not twice, "\n\n".join(twice[:5])
    repeated = repeats(book, bounds)
    assert not repeated[NO_CAUSE], "a repeat without a cause"
    return book, found, repeated


def latencies(
    load: OpenLoad, from_s: float, to_s: float, shards: Sequence[int] | range = range(SHARDS)
) -> dict[str, Any]:
    """Return figures of the enqueues into these shards that were due between two moments of the loop's clock."""
    found = [call for call in load.timed if call.shard in shards and from_s <= call.begun_s < to_s]
    took = sorted(call.took_s * 1_000 for call in found if call.done)
    return {
        "calls": len(found),
        "not_done": len(found) - len(took),
        "p50_ms": _rounded(percentile(took, 0.5)),
        "p99_ms": _rounded(percentile(took, 0.99)),
    }


def _errors(book: ItemHistories) -> Counter[str]:
    """Count the errors of calls and of their entries."""
    found: Counter[str] = Counter()
    for call in book.record.calls:
        if call.process == PROCESS:
            continue
        if call.end is not CallEnd.OK:
            found[f"{call.op} {call.code or 'UNKNOWN'}"] += 1
        found.update(f"{call.op} {each['error']} of an entry" for each in call.results if "error" in each)
    return found


def format_counts(counts: Counter[str]) -> str:
    """Counts for people."""
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"


def rounded_s(value: float) -> float:
    return round(value, 2)


def now_s() -> float:
    """Return the time of the loop's clock and `time.monotonic`."""
    return time.monotonic()


def name_of(host: HostProcess) -> str:
    return str(host.options["server.name"])


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _owners(routing: Routing | None) -> dict[int, str]:
    shards = routing.shards if routing is not None else []
    return {shard.shard: shard.owner_name for shard in shards if shard.state == "owned" and shard.owner_name}


async def _ask(addresses: Sequence[str]) -> Routing | None:
    for address in addresses:
        with contextlib.suppress(FoqsError):
            async with Client(address) as client:
                return await client.routing(timeout_ms=_ROUTING_MS)
    return None


async def _shards(url: str) -> list[tuple[int, str]]:
    async with Client(url) as client:
        return [(shard.shard, str(shard.database)) for shard in await client.list_shards()]
