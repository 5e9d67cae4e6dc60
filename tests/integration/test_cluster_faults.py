"""A cluster in trouble under load: three hosts, two databases, eight shards, a real ZooKeeper.

Every test has a load that does not wait for the cluster. All follow the same rules
(`FaultScenario.play`): no item is lost, no item is done by two consumers, every
repeat has its cause, and the commits in the databases are in the order of epochs.
Times are reported and not checked, because the machine of a test is busy. The long forms write
their figures to perf/results.
"""

from __future__ import annotations

import asyncio
import urllib.error
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pytest

from foqs.dev.host_process import HostProcess
from foqs_client import Client, FoqsError
from perf.lib.report import Report, percentile, say
from tests.support.faulty_cluster import SHARDS, FaultScenario, FaultyCluster, latencies, name_of, now_s, rounded_s
from tests.support.workload import pause

pytestmark = [pytest.mark.process, pytest.mark.mysql, pytest.mark.zookeeper]

SHORT_RATE: Final = 60.0
"""Items per second."""
LONG_RATE: Final = 600.0
SHORT_SESSION_MS: Final = 4_000
LONG_SESSION_MS: Final = 6_000
LONG_TIMEOUT_S: Final = 1_500

RecordFigures = Callable[[str, dict[str, Any]], None]


def lengths(name: str, short: int, full: int) -> pytest.MarkDecorator:
    """Parametrize a test with its short and its long form. They differ in the argument `name`."""
    marks = [pytest.mark.long, pytest.mark.timeout(LONG_TIMEOUT_S)]
    forms = [
        pytest.param(SHORT_SESSION_MS, SHORT_RATE, short, id="short", marks=pytest.mark.timeout(600)),
        pytest.param(LONG_SESSION_MS, LONG_RATE, full, id="long", marks=marks),
    ]
    return pytest.mark.parametrize(("troubled", "rate", name), forms, indirect=["troubled"], scope="module")


@pytest.fixture(scope="module")
def troubled(request: pytest.FixtureRequest) -> Iterator[FaultyCluster]:
    """A cluster whose session timeout is the parameter, in milliseconds."""
    with FaultyCluster({"cluster.session_timeout_ms": request.param}) as found:
        yield found


@pytest.fixture
def record_figures(request: pytest.FixtureRequest) -> RecordFigures:
    """Show the figures of a test. Also store them if it is the long form."""
    long = request.node.get_closest_marker("long") is not None
    name = request.node.name.partition("[")[0].removeprefix("test_")

    def record(story: str, figures: dict[str, Any]) -> None:
        width = max(map(len, figures))
        say(f"\n{name}\n" + "\n".join(f"  {key:<{width}}  {value}" for key, value in figures.items()))
        if long:
            Report("trouble").add({"story": story}, figures)

    return record


def spread(name: str, values: Sequence[float]) -> dict[str, Any]:
    """Return the least, the median and the most of measured seconds, and all of them."""
    ordered = sorted(values)
    return {
        f"{name}_least_s": rounded_s(ordered[0]),
        f"{name}_p50_s": rounded_s(percentile(ordered, 0.5) or 0.0),
        f"{name}_most_s": rounded_s(ordered[-1]),
        f"{name}_s": [rounded_s(value) for value in values],
    }


# ------------------------------------------------------------------------- hosts


@lengths("times", 3, 20)
def test_a_killed_host_loses_nothing(
    troubled: FaultyCluster, record_figures: RecordFigures, rate: float, times: int
) -> None:
    took: list[float] = []

    async def kill(trouble: FaultScenario) -> None:
        for number in range(times):
            host = victim(troubled, number)
            shards = await trouble.owned_by(host)
            began_s = now_s()
            await trouble.killed(host)
            try:
                took.append(max(await trouble.served_without(host, shards, began_s)))
            finally:
                await asyncio.to_thread(host.start)
            await trouble.wait_until_settled()

    figures = FaultScenario(troubled, rate).play(kill, LONG_TIMEOUT_S)
    record_figures("kill -9 of a host", {"times": times, **spread("served_again", took), **figures})


@lengths("times", 2, 20)
def test_a_host_that_was_frozen_past_its_session_writes_nothing(
    troubled: FaultyCluster, record_figures: RecordFigures, rate: float, times: int
) -> None:
    took: list[float] = []

    async def freeze(trouble: FaultScenario) -> None:
        for number in range(times):
            host = victim(troubled, number)
            shards = await trouble.owned_by(host)
            began_s = now_s()
            await trouble.frozen(host)
            try:
                took.append(max(await trouble.served_without(host, shards, began_s)))
            finally:
                await trouble.thawed(host)
            await trouble.load.more(50)
            await trouble.wait_until_settled()

    figures = FaultScenario(troubled, rate).play(freeze, LONG_TIMEOUT_S)
    assert figures["epochs"] >= 2 * times, "no shard was taken over"
    record_figures("SIGSTOP of a host past its session", {"times": times, **spread("served_again", took), **figures})


def victim(troubled: FaultyCluster, number: int) -> HostProcess:
    return troubled.cluster.hosts[number % len(troubled.cluster.hosts)]


@lengths("times", 1, 3)
def test_a_rolling_restart_of_all_hosts_causes_no_error(
    troubled: FaultyCluster, record_figures: RecordFigures, rate: float, times: int
) -> None:
    took: list[float] = []

    async def roll(trouble: FaultScenario) -> None:
        for _ in range(times):
            for host in troubled.cluster.hosts:
                began_s = now_s()
                await asyncio.to_thread(host.stop)
                await asyncio.to_thread(host.start)
                await trouble.wait_until_settled()
                took.append(now_s() - began_s)
                await trouble.load.more(50)

    trouble = FaultScenario(troubled, rate, spoil=0.0)
    figures = trouble.play(roll, LONG_TIMEOUT_S)
    record_figures("a rolling restart", {"times": times, **spread("host", took), **figures})
    assert figures["errors"] == "none", "an error reached a caller"


# --------------------------------------------------------------------- ZooKeeper


@lengths("times", 1, 6)
def test_a_host_without_zookeeper_stops_before_another_host_serves(
    troubled: FaultyCluster, record_figures: RecordFigures, rate: float, times: int
) -> None:
    took: list[float] = []

    async def cut_off(trouble: FaultScenario) -> None:
        for number in range(times):
            host = victim(troubled, number)
            shards = await trouble.owned_by(host)
            began_s = now_s()
            troubled.proxies[name_of(host)].drop()
            try:
                await trouble.wait_until(lambda host=host: "cut off" in unready(host), "it serves nothing")  # type: ignore[misc]
                took.append(max(await trouble.served_without(host, shards, began_s)))
            finally:
                troubled.proxies[name_of(host)].heal()
            await trouble.wait_until_settled()

    figures = FaultScenario(troubled, rate).play(cut_off, LONG_TIMEOUT_S)
    record_figures("cut from ZooKeeper only", {"times": times, **spread("served_again", took), **figures})


@lengths("away_s", 10, 60)
def test_without_zookeeper_hosts_stop_in_time_and_recover_on_their_own(
    troubled: FaultyCluster, record_figures: RecordFigures, rate: float, away_s: float
) -> None:
    came_back: list[float] = []

    async def away(trouble: FaultScenario) -> None:
        zookeeper = troubled.cluster.zookeeper
        await asyncio.to_thread(zookeeper.stop)
        try:
            for host in troubled.cluster.hosts:
                await trouble.wait_until(lambda host=host: "cut off" in unready(host), "it serves nothing")  # type: ignore[misc]
            await pause(away_s)
        finally:
            await asyncio.to_thread(zookeeper.start)
        began_s = now_s()
        addresses = [f"127.0.0.1:{host.port}" for host in troubled.cluster.hosts]
        came_back.extend((await trouble.prober.served(range(SHARDS), addresses, began_s)).values())

    figures = FaultScenario(troubled, rate).play(away, LONG_TIMEOUT_S)
    record_figures("ZooKeeper away", {"away_s": away_s, **spread("served_again", came_back), **figures})


@lengths("times", 1, 3)
def test_a_restart_of_zookeeper_loses_nothing(
    troubled: FaultyCluster, record_figures: RecordFigures, rate: float, times: int
) -> None:
    came_back: list[float] = []

    async def restart(trouble: FaultScenario) -> None:
        for _ in range(times):
            began_s = now_s()
            await asyncio.to_thread(troubled.cluster.zookeeper.stop)
            await asyncio.to_thread(troubled.cluster.zookeeper.start)
            addresses = [f"127.0.0.1:{host.port}" for host in troubled.cluster.hosts]
            came_back.extend((await trouble.prober.served(range(SHARDS), addresses, began_s)).values())
            for host in troubled.cluster.hosts:
                await trouble.wait_until(lambda host=host: not unready(host), "it delivers again")  # type: ignore[misc]
            await trouble.load.more(50)

    figures = FaultScenario(troubled, rate).play(restart, LONG_TIMEOUT_S)
    record_figures("ZooKeeper restarted", {"times": times, **spread("served_again", came_back), **figures})


def unready(host: HostProcess) -> str:
    """Return the unready parts that /readyz names; "" if the host is ready or does not answer."""
    try:
        host.get("/readyz")
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode()
    except OSError:
        pass
    return ""


# --------------------------------------------------------------------- databases


@lengths("away_s", 5, 30)
def test_shards_of_one_database_continue_while_the_other_is_stopped(
    troubled: FaultyCluster, record_figures: RecordFigures, rate: float, away_s: float
) -> None:
    measured: dict[str, Any] = {}
    server = troubled.cluster.databases[0]
    hit = [shard for shard, where in troubled.databases.items() if where is server]
    others = [shard for shard in range(SHARDS) if shard not in hit]

    async def stop(trouble: FaultScenario) -> None:
        began_s = now_s()
        await pause(away_s)
        stopped_s = now_s()
        await asyncio.to_thread(server.stop)
        opened = "the breakers of its shards are open"
        # A page of metrics costs the hosts some milliseconds: frequent polls would delay the other shards' calls.
        try:
            await trouble.wait_until(lambda: not breakers_closed(troubled, hit), opened, pause_s=0.5)
            opened_s = now_s()
            await pause(away_s)
        except TimeoutError as error:
            error.add_note(f"of {hit} these are closed: {breakers_closed(troubled, hit)}")
            raise
        finally:
            await asyncio.to_thread(server.start)
        started_s = now_s()
        addresses = [f"127.0.0.1:{host.port}" for host in troubled.cluster.hosts]
        again = await trouble.prober.served(hit, addresses, started_s)
        measured.update(spread("served_again", [*again.values()]))
        measured["breakers_open_s"] = rounded_s(opened_s - stopped_s)
        for name, moments in (("before", (began_s, stopped_s)), ("during", (stopped_s, started_s))):
            seen = latencies(trouble.load, *moments, others)
            measured.update({f"others_{name}_{key}": value for key, value in seen.items()})

    trouble = FaultScenario(troubled, rate)
    figures = trouble.play(stop, LONG_TIMEOUT_S)
    assert measured["others_during_not_done"] == 0, "a shard of the other database refused an item"
    record_figures("a database stopped", {"away_s": away_s, **measured, **figures})


def breakers_closed(troubled: FaultyCluster, shards: Sequence[int]) -> dict[int, str]:
    """Return the shards that are served with a closed breaker, and their hosts.

    An open breaker tries now and then, and an owner may change. A host that does not answer may serve any of them.
    """
    found: dict[int, str] = {}
    for host in troubled.cluster.hosts:
        try:
            page = host.get("/metrics")
        except OSError:
            found.update(dict.fromkeys(shards, f"perhaps {name_of(host)}, which does not answer"))
            continue
        for line in page.splitlines():
            name, _, value = line.rpartition(" ")
            if name.startswith("foqs_shard_breaker_state{") and 'state="closed"' in name and float(value) == 1:
                shard = int(name.partition('shard="')[2].partition('"')[0])
                if shard in shards:
                    found[shard] = name_of(host)
    return found


# ------------------------------------------------------------------------- moves


@lengths("moves", 5, 30)
def test_shards_move_under_load_and_nothing_is_lost(
    troubled: FaultyCluster, record_figures: RecordFigures, rate: float, moves: int
) -> None:
    measured: dict[str, Any] = {}

    async def move(trouble: FaultScenario) -> None:
        began_s = now_s()
        names = [name_of(host) for host in troubled.cluster.hosts]
        async with Client(troubled.cluster.url) as client:
            try:
                for number in range(moves):
                    shard = number % SHARDS
                    owners = await asyncio.to_thread(troubled.owners)
                    others = [name for name in names if name != owners.get(shard)]
                    await asked(client, shard, others[number % len(others)])
                    await pause(2.0)
                seen = latencies(trouble.load, began_s, now_s())
                measured.update({f"moving_{key}": value for key, value in seen.items()})
            finally:
                for shard in range(SHARDS):
                    await asked(client, shard, None)

    figures = FaultScenario(troubled, rate, spoil=0.0).play(move, LONG_TIMEOUT_S)
    assert figures["epochs"] >= moves / 2, "hardly a shard was moved"
    record_figures("a move every 2 s", {"moves": moves, **measured, **figures})


async def asked(client: Client, shard: int, name: str | None) -> None:
    """Request the move until it is recorded. A repeated request does no harm."""
    while True:
        try:
            return await client.move_shard(shard, name)
        except FoqsError:
            await pause(0.1)


@lengths("times", 1, 6)
def test_a_drained_host_hands_its_shards_over(
    troubled: FaultyCluster, record_figures: RecordFigures, rate: float, times: int
) -> None:
    measured: dict[str, Any] = {}
    took: list[float] = []

    async def drain(trouble: FaultScenario) -> None:
        calls = []
        async with Client(troubled.cluster.url) as client:
            for number in range(times):
                host = victim(troubled, number)
                shards = await trouble.owned_by(host)
                began_s = now_s()
                await client.drain_host(name_of(host))
                try:
                    await trouble.wait_until(
                        lambda host=host: handed_over(troubled, host),  # type: ignore[misc]
                        "others serve its shards",
                    )
                    took.append(now_s() - began_s)
                    await trouble.load.more(20)
                finally:
                    await client.undrain_host(name_of(host))
                # A call that began before may have waited for the new owner.
                calls += [
                    call
                    for call in trouble.load.timed
                    if call.shard in shards and began_s - 0.1 <= call.begun_s < began_s + took[-1]
                ]
                await trouble.wait_until_settled()
        ordered = sorted(call.took_s * 1_000 for call in calls)
        measured["handed_over_calls"] = len(ordered)
        measured["handed_over_not_done"] = sum(not call.done for call in calls)
        for share in (0.5, 0.99):
            measured[f"handed_over_p{share * 100:.0f}_ms"] = round(percentile(ordered, share) or 0.0, 1)

    figures = FaultScenario(troubled, rate, spoil=0.0).play(drain, LONG_TIMEOUT_S)
    record_figures("planned hand-over", {"times": times, **spread("drain", took), **measured, **figures})


def handed_over(troubled: FaultyCluster, host: HostProcess) -> bool:
    owners = troubled.owners()
    return len(owners) == SHARDS and name_of(host) not in owners.values()
