"""The clients of a simulated run: they make all calls that clients can make, at random.

Holds producers, consumers and the plan of a run. Always true: every payload is
unique; delays, leases and backoffs are short enough to end within the run. Does
not judge; the checker does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, ClassVar, Final, TypeVar
from zlib import crc32

from foqs_client import Change, Client, Delivery, FoqsError, Item, Nack, Unavailable
from tests.simulation.administrator import SWEPT, Administrator
from tests.simulation.atomic_producer import ATOMIC_TOPIC, AtomicProducer
from tests.simulation.cluster import KEY_WINDOW_MS, NAMESPACES, URL, Incarnation, SimulatedCluster
from tests.simulation.completer import COMPLETED_TOPICS, Completer
from tests.simulation.crowd import CALLERS, Crowd
from tests.simulation.group_client import GROUPED_TOPICS, GroupClient
from tests.simulation.guest import Guest
from tests.simulation.in_sequence import InSequence
from tests.simulation.key_repeater import KeyRepeater
from tests.simulation.mover import MOVED_TOPICS, Mover
from tests.simulation.namespace_operator import BRIEF, TOPIC, NamespaceOperator
from tests.simulation.principals import CONSUMER, GUEST, OPERATOR, PRODUCER, token
from tests.simulation.trespasser import Trespasser
from tests.simulation.turn_taker import TURNS_TOPIC, TurnTaker
from tests.support.access_rules import NOBODY
from tests.support.history import History
from tests.support.recording_admin import RecordingAdmin
from tests.support.recording_client import RecordingClient
from tests.support.request_time_client import RequestTimeClient

T = TypeVar("T")

TOPICS: Final = ("mail", "video", "resize", "späte Übersetzung", SWEPT)
PRODUCERS: Final = ("default", "default", "other")
"""The namespace of each."""
CONSUMERS: Final = ("default", "default", "default", "other", "other")
_USED_KEPT: Final = 20
"""The number of recent keys that are used again: those of the last second or two, and sometimes one that has ended."""
_ON_ITS_WAY_S: Final = 1.0
"""The time in which everything that was sent to a database before `healed` arrives."""
_STILL_S_MAX: Final = 10.0
"""The time after which no item is delayed any more."""
_QUIET_S: Final = 6.0
"""The longest delay of an item."""


@dataclass(slots=True, frozen=True)
class Plan:
    """The least amount of work of a run."""

    items: int = 300
    calls: int = 2_000
    crashes: int = 3


class Run:
    """One seeded run: clients work while their host is killed, until the plan is fulfilled.

    Attributes:
        url: the address of the hosts.
        steps_between_troubles: the least and the greatest number of steps.
    """

    url: ClassVar[str] = URL
    steps_between_troubles: ClassVar[tuple[int, int]] = (900, 5_600)

    def __init__(self, cluster: SimulatedCluster, seed: int, plan: Plan) -> None:
        self.cluster = cluster
        self.plan = plan
        self.history = History(lambda: cluster.loop.time() * 1000)
        self.items = self.calls = self.crashes = 0
        self._rng = Random(f"{seed}/workload")
        self._fate = Random(f"{seed}/troubles")
        self._weakening = Random(f"{seed}/weak servers")
        self._pauses = Random(f"{seed}/in sequence")
        self._atomic = Random(f"{seed}/atomic calls")
        self._completions = Random(f"{seed}/completions")
        self._groups = Random(f"{seed}/groups")
        self.has_completions = False
        """Whether a client completes items; as `has_atomic_calls`."""
        self.has_groups = False
        """Whether items of a client have groups; as `has_atomic_calls`."""
        self.has_turns = False
        """Whether there is a client whose groups take turns; as `has_atomic_calls`."""
        self.judges_turns = False
        """Whether the turns are judged: all groups fit into memory."""
        self.turns_judged = 0
        """How many deliveries were judged by the turns of their groups."""
        self.has_atomic_calls = False
        """Whether a client makes atomic calls. It has its own random numbers, but changes all histories by its work."""
        self._working = True
        self._known: dict[str, list[str]] = {name: [] for name in NAMESPACES}
        self._used: dict[str, list[Item]] = {name: [] for name in NAMESPACES}
        """Items with keys, by namespace."""
        self.differences: list[str] = []
        """Differences between the hosts' memory and the tables, at rest."""

    async def play(self) -> None:
        """Work, heal, drain, and record the remaining rows."""
        self._schedule_trouble()
        self.cluster.loop.on_step = self._on_step
        await self._set_up()
        workers = [asyncio.ensure_future(self._produce(f"producer-{n}", space)) for n, space in enumerate(PRODUCERS)]
        workers += [asyncio.ensure_future(self._consume(f"consumer-{n}", space)) for n, space in enumerate(CONSUMERS)]
        administrators = {name: self._administrator(name) for name in NAMESPACES}
        workers += [asyncio.ensure_future(each.work(lambda: not self._working)) for each in administrators.values()]
        rng = Random(f"{self._rng.random()}/operator")
        operator = NamespaceOperator(self._administering("operator", BRIEF, token(OPERATOR)), rng, self._count_call)
        workers.append(asyncio.ensure_future(operator.work(lambda: not self._working)))
        workers += [
            asyncio.ensure_future(each) for each in (*self._guests(), self._crowd(), self._move(), *self._more())
        ]
        if self.has_atomic_calls:
            workers.append(asyncio.ensure_future(self._call_atomically()))
        if self.has_completions:
            workers.append(asyncio.ensure_future(self._complete()))
        if self.has_groups:
            workers.append(asyncio.ensure_future(self._work_with_groups()))
        turns = self._turn_taker() if self.has_turns else None
        if turns is not None:
            workers.append(asyncio.ensure_future(turns.work(lambda: not self._working)))
        sequence = self._in_sequence()
        workers.append(asyncio.ensure_future(sequence.work(lambda: not self._working)))
        await self._until(lambda: self._is_enough())
        self._working = False
        self.cluster.heal()
        await asyncio.gather(*workers)
        await self._recover()
        await asyncio.gather(operator.restore(), *(each.restore() for each in administrators.values()))
        await self._compare(administrators)
        self.history.healed()
        await operator.carry_over()
        self.differences += await sequence.violations()
        if turns is not None and self.judges_turns and len(self.cluster.running()) == 1:
            self.differences += await turns.violations()
            self.turns_judged = turns.judged
        self.cluster.slow_down_at_last()
        spaces = (*NAMESPACES, *NAMESPACES, BRIEF)
        await asyncio.gather(*(self._drain(f"drainer-{n}", space) for n, space in enumerate(spaces)))
        await self._compare(administrators)
        await asyncio.gather(operator.close(), *(each.close() for each in administrators.values()))
        self.history.present(self.cluster.rows())

    async def _set_up(self) -> None:
        """Prepare the cluster before any client works."""
        self.cluster.start("alpha")

    def _more(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Return more workers. Subclasses have others."""
        yield self._trespass()
        yield self._repeat()

    def _in_sequence(self) -> InSequence:
        """Return the client that checks the order."""
        client = self._recording("in sequence", "default", OPERATOR)
        return InSequence(self.cluster, client, self._pauses, self._call)

    def _turn_taker(self) -> TurnTaker:
        """Return the client whose groups take turns."""
        client = self._recording("turn taker", "default", OPERATOR)
        return TurnTaker(client, Random(f"{self._rng.random()}/turns"), self._call)

    def _is_enough(self) -> bool:
        plan = self.plan
        return self.items >= plan.items and self.calls >= plan.calls and self.crashes >= plan.crashes

    async def _until(self, condition: object) -> None:
        assert callable(condition)
        while not condition():  # noqa: ASYNC110 - virtual time, any condition
            await asyncio.sleep(0.05)

    async def _recover(self) -> None:
        """Wait until one host serves, no earlier one runs, and nothing that they sent can still arrive."""
        await self._until(lambda: not any(each.stop.is_set() for each in self.cluster.running()))
        await self._serve()
        while not self.cluster.running():
            # Two hosts had each taken a shard from the other, and both have exited.
            await self._serve()

    async def _serve(self) -> None:
        """Wait until a host serves, or served, and everything in flight has arrived."""
        cluster = self.cluster
        if not cluster.running():
            cluster.start("alpha")
        await self._until(lambda: any(each.ready for each in cluster.running()) or not cluster.running())
        until_s = cluster.loop.time() + _STILL_S_MAX
        await asyncio.sleep(_ON_ITS_WAY_S)
        await self._until(lambda: cluster.is_still() or cluster.loop.time() >= until_s)

    async def _compare(self, administrators: Mapping[str, Administrator]) -> None:
        """Compare the hosts' memory and listings with the tables, at rest."""
        await self._until(self.cluster.is_at_rest)
        self.differences += self.cluster.differences()
        for namespace, each in administrators.items():
            self.differences += await each.differences(
                self.cluster.rows(namespace), self.cluster.payload_bytes(namespace)
            )

    # --------------------------------------------------------------- troubles

    def _schedule_trouble(self) -> None:
        loop = self.cluster.loop
        loop.on_step_from = loop.steps + self._fate.randint(*self.steps_between_troubles)

    def _on_step(self, step: int) -> None:
        """Cause a fault at a random step, between any two awaits."""
        if not self._working:
            return
        self._schedule_trouble()
        cluster, fate = self.cluster, self._fate
        running = cluster.running()
        kind = fate.random()
        if not running:
            # A restart found two hosts running, and both have exited since.
            self._restart()
        elif kind < 0.42:
            cluster.kill(fate.choice(running))
            self.crashes += 1
            self._later(fate.uniform(0.0, 0.8), self._restart)
        elif kind < 0.54:
            cluster.stop(fate.choice(running))
            self._later(fate.uniform(0.0, 0.8), self._restart)
        elif kind < 0.6 and len(running) == 1:
            self._restart()
        elif kind < 0.7 and len(running) == 1:
            cluster.lose_reply(running[0], fate.uniform(0.1, 0.6))
        elif kind < 0.9:
            self._trouble_servers()
        else:
            self._cut_some()

    def _trouble_servers(self) -> None:
        """Let one database server fail, or all at once."""
        fate, servers = self._fate, self.cluster.all_servers()
        kind, seconds = fate.random(), fate.choice((0.05, 0.4, 1.5, 4.0)) * fate.uniform(0.5, 1.5)
        for server in servers if fate.random() < 0.3 else [fate.choice(servers)]:
            if kind < 0.3:
                server.restart(weak_s=self._weak_s())
            elif kind < 0.55:
                server.restart(away_s=seconds, weak_s=self._weak_s())
            elif kind < 0.8:
                server.turn_read_only(seconds)
            else:
                server.slow_down(seconds)

    def _weak_s(self) -> float:
        """Return for how long a restarted server has wrong settings; mostly 0."""
        return self._weakening.choice((0.0, 0.0, 0.0, 0.4, 1.5)) * self._weakening.uniform(0.5, 1.5)

    def _cut_some(self) -> None:
        for connection in self.cluster.network.connections():
            if self._fate.random() < 0.4:
                self.cluster.network.cut(connection)

    def _restart(self) -> None:
        """Start a host. If another still runs, some clients move and some stay with the old host."""
        running = self.cluster.running()
        if self._working and len(running) < 2:
            if running and self._fate.random() < 0.5:
                self.cluster.hold(running[0], self._fate.uniform(0.05, 2.5))
            self.cluster.restart_elsewhere()
            self._later(self._fate.uniform(0.0, 0.2), self._cut_some)

    def _later(self, delay_s: float, call: object) -> None:
        assert callable(call)
        self.cluster.loop.call_later(delay_s, call)

    # ---------------------------------------------------------------- clients

    def _client(self, name: str, namespace: str, shown: str | None, url: str | None = None) -> Client:
        return self._open(
            name,
            f"foqs://{url or self.url}",
            namespace=namespace,
            timeout_ms=3_000,
            automatic_keys=self._fate.random() < 0.5,
            token=shown,
            connect=self.cluster.connector(name, Random(f"{self._fate.random()}/{name}")),
            rng=Random(f"{self._fate.random()}/keys"),
        )

    def _open(self, name: str, *arguments: Any, **options: Any) -> Client:
        """Open a client. `name` is for subclasses."""
        return RequestTimeClient(*arguments, **options)

    def _recording(self, name: str, namespace: str, principal: str, url: str | None = None) -> RecordingClient:
        client = self._client(name, namespace, token(principal), url)
        return RecordingClient(client, self.history, name, self.cluster.clock.wall_ms)

    def _administering(
        self, name: str, namespace: str, shown: str | None, principal: str | None = None
    ) -> RecordingAdmin:
        client = self._client(name, namespace, shown)
        return RecordingAdmin(client, self.history, name, self.cluster.clock.wall_ms, principal)

    def _administrator(self, namespace: str) -> Administrator:
        name = f"administrator of {namespace}"
        client = self._administering(name, namespace, token(OPERATOR))
        rng = Random(f"{self._rng.random()}/{name}")
        return Administrator(client, rng, TOPICS, NAMESPACES[namespace], self._count_call)

    def _guests(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Return a guest with a token and changing grants, one without a token, and one with a wrong token."""
        for principal, shown in ((GUEST, token(GUEST)), (NOBODY, None), (NOBODY, "a wrong one")):
            name = f"{principal} {'without a token' if shown is None else 'with ' + shown}"
            clients = {space: self._administering(name, space, shown, principal) for space in NAMESPACES}
            guest = Guest(clients, Random(f"{self._rng.random()}/{name}"), TOPICS, self._known)
            yield guest.work(name, lambda: not self._working)

    async def _crowd(self) -> None:
        """Run many callers of one client, which enqueue and consume."""
        client = self._client("crowd", "default", token(OPERATOR))
        callers = [
            RecordingClient(client, self.history, f"crowd-{n}", self.cluster.clock.wall_ms) for n in range(CALLERS)
        ]
        rng = Random(f"{self._rng.random()}/crowd")
        await Crowd(callers, rng, TOPICS, _item, self._call).work("crowd", lambda: not self._working)

    async def _move(self) -> None:
        """Run a client that moves items."""
        client = self._recording("mover", "default", OPERATOR)
        rng = Random(f"{self._rng.random()}/mover")
        await Mover(client, rng, self._call).work("mover", lambda: not self._working)

    async def _trespass(self) -> None:
        """Run a client that names its deliveries in another namespace."""
        owner, stranger = (self._recording(f"trespasser in {name}", name, OPERATOR) for name in NAMESPACES)
        rng = Random(f"{self._rng.random()}/trespasser")
        await Trespasser(owner, stranger, rng, TOPICS, self._call).work(lambda: not self._working)

    async def _repeat(self) -> None:
        """Run a client that repeats keys before and after their windows end."""
        client = self._recording("repeater", "default", PRODUCER)
        rng = Random(f"{self._rng.random()}/repeater")
        repeater = KeyRepeater(client, rng, TOPICS, KEY_WINDOW_MS / 1_000, self.cluster.clock.wall_ms, self._call)
        await repeater.work("repeater", lambda: not self._working)

    async def _call_atomically(self) -> None:
        """Run a client that makes atomic calls."""
        client = self._recording("atomic", "default", OPERATOR)
        await AtomicProducer(client, self._atomic, self._call).work(lambda: not self._working)

    async def _complete(self) -> None:
        """Run a client that completes items."""
        client = self._recording("completer", "default", OPERATOR)
        await Completer(client, self._completions, self._call).work(lambda: not self._working)

    async def _work_with_groups(self) -> None:
        """Run a client whose items have groups."""
        client = self._recording("grouped", "default", OPERATOR)
        await GroupClient(client, self._groups, self._call).work(lambda: not self._working)

    def _count_call(self) -> None:
        self.calls += 1

    async def _produce(self, name: str, namespace: str) -> None:
        rng = Random(f"{self._rng.random()}/{name}")
        client = self._recording(name, namespace, PRODUCER)
        known = self._known[namespace]
        number = 0
        while self._working:
            batch = []
            # A burst of one topic now and then, more than a window holds.
            topic, count = (rng.choice(TOPICS), 24) if rng.random() < 0.03 else (None, rng.choice((1, 1, 1, 3)))
            for _ in range(count):
                number += 1
                batch.append(_item(rng, topic or rng.choice(TOPICS), f"{name}/{number}".encode()))
            if rng.random() < 0.4:
                batch = self._keyed(rng, batch, self._used[namespace])
            self.items += len(batch)
            try:
                results = await self._call(client.enqueue(batch, timeout_ms=rng.choice((50, 500, 3_000))))
                known += [result.id for result in results if result.id]
                if rng.random() < 0.1 and known:
                    await self._call(client.cancel([rng.choice(known[-40:])]))
                if rng.random() < 0.15 and known:
                    await self._call(client.update([rng.choice(known[-40:])], _change(rng)))
                if rng.random() < 0.1 and known:
                    await self._call(client.redrive(sorted(set(rng.choices(known[-80:], k=4)))))
                if rng.random() < 0.1 and known:
                    await self._call(client.explain(rng.choice(known[-60:])))
                if rng.random() < 0.06:
                    await self._attack_other_namespace(client, rng)
                if rng.random() < 0.03:
                    await self._purge(client, rng, rng.choice(TOPICS))
            except FoqsError:
                pass
            await asyncio.sleep(rng.expovariate(25))
        await client.client.close()

    async def _purge(self, client: RecordingClient, rng: Random, topic: str) -> None:
        """Purge a topic: sometimes twice at once, during a burst of items, or between two bursts."""
        asked: list[Awaitable[object]] = [client.purge_topic(topic, timeout_ms=rng.choice((50, 500, 3_000)))]
        kind = rng.random()
        if kind < 0.3:
            asked.append(client.purge_topic(topic))
        elif kind < 0.5:
            burst = [_item(rng, topic, f"purged/{rng.random()}".encode()) for _ in range(30)]
            self.items += len(burst)
            asked.insert(0, client.enqueue(burst))
        else:
            # Older items wait behind the new ones, so the next refill continues where purged rows may still be.
            await self._call(client.enqueue(self._ready(rng, topic, 40, 7)))
        await asyncio.gather(*map(self._call, asked))
        if kind >= 0.5:
            await self._call(client.enqueue(self._ready(rng, topic, 8, -7)))

    def _ready(self, rng: Random, topic: str, count: int, priority: int) -> list[Item]:
        """Make a burst of items of one topic that are ready at once."""
        self.items += count
        plain = [_item(rng, topic, f"purged/{rng.random()}".encode()) for _ in range(count)]
        return [replace(item, priority=priority, delay_ms=None) for item in plain]

    async def _attack_other_namespace(self, client: RecordingClient, rng: Random) -> None:
        """Try to cancel an item of another namespace."""
        others = [id for name in NAMESPACES if name != client.client.namespace for id in self._known[name][-5:]]
        if others:
            await self._call(client.cancel([rng.choice(others)]))

    def _keyed(self, rng: Random, batch: list[Item], used: list[Item]) -> list[Item]:
        """Give some items their own keys, and add repeats of earlier ones and a conflicting use of a key."""
        wrong = []
        if used and rng.random() < 0.15:
            wrong = [replace(batch.pop(), idempotency_key=rng.choice(used).idempotency_key)]
        fresh = [replace(item, idempotency_key=item.payload.decode()) if rng.random() < 0.7 else item for item in batch]
        used += [item for item in fresh if item.idempotency_key is not None]
        del used[:-_USED_KEPT]
        repeats = rng.sample(used, min(len(used), rng.choice((0, 0, 1, 1, 3))))
        whole = fresh + repeats + wrong
        rng.shuffle(whole)
        return whole

    async def _consume(self, name: str, namespace: str) -> None:
        rng = Random(f"{self._rng.random()}/{name}")
        client = self._recording(name, namespace, CONSUMER)
        old: list[Delivery] = []
        while self._working:
            topics = rng.sample(TOPICS, rng.randint(1, len(TOPICS)))
            wants = {topic: rng.choice((1, 2, 5)) for topic in topics}
            lease_ms = rng.choice((None, None, None, rng.randint(30, 900)))
            reply = client.dequeue(
                wants, wait_ms=rng.choice((0, 30, 400)), lease_ms=lease_ms, timeout_ms=rng.choice((300, 1_000, 3_000))
            )
            try:
                if rng.random() < 0.03:
                    await self._give_up_on(reply, rng.uniform(0, 0.05))
                    continue
                deliveries = await self._call(reply)
                await self._settle_deliveries(client, rng, deliveries, old)
            except FoqsError:
                pass
            await asyncio.sleep(rng.expovariate(100))
        await client.client.close()

    async def _give_up_on(self, asked: object, after_s: float) -> None:
        """Cancel a dequeue while it waits."""
        self.calls += 1
        task = asyncio.ensure_future(asked)  # type: ignore[call-overload]
        await asyncio.sleep(after_s)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _settle_deliveries(
        self, client: RecordingClient, rng: Random, deliveries: Sequence[Delivery], old: list[Delivery]
    ) -> None:
        """Ack most deliveries, and extend, nack, release or keep the others; some twice, some late."""
        if deliveries and rng.random() < 0.3:
            await asyncio.sleep(rng.uniform(0, 0.5))
        if deliveries and rng.random() < 0.1:
            await self._call(client.explain(rng.choice(deliveries).id))
        groups: dict[str, list[Delivery]] = {}
        for delivery in deliveries:
            group = rng.choices(("ack", "nack", "extend", "release", "keep"), (60, 16, 8, 6, 10))[0]
            groups.setdefault(group, []).append(delivery)
        old += groups.get("keep", [])
        if groups.get("extend"):
            # Perhaps too late: the lease of a kept item may have ended, or another consumer may have the item.
            late = [each for each in old[-3:] if each.id not in {delivery.id for delivery in deliveries}]
            extended = list({each.id: each for each in (*late, *groups["extend"])}.values())
            await self._call(client.extend(extended, lease_ms=rng.choice((None, 0, 50, 700))))
            await asyncio.sleep(rng.uniform(0, 0.3))
        if groups.get("release"):
            await self._call(client.release(groups["release"]))
        if groups.get("nack"):
            await self._call(client.nack([_nack(rng, delivery) for delivery in groups["nack"]]))
            if rng.random() < 0.2:  # a renewal was under way when the handler failed
                await self._call(client.extend(groups["nack"]))
        done = groups.get("ack", []) + groups.get("extend", [])
        if rng.random() < 0.2 and old:
            done.append(old.pop(rng.randrange(len(old))))
        done = list({delivery.id: delivery for delivery in done}.values())
        if done and rng.random() < 0.1:
            # All at once: the first one wins.
            several: list[Awaitable[object]] = [client.extend(done[:1]), client.ack(done), client.release(done[-1:])]
            await asyncio.gather(*map(self._call, several))
        elif done:
            await self._call(client.ack(done))
            old += rng.sample(done, 1) if rng.random() < 0.1 else []

    async def _drain(self, name: str, namespace: str) -> None:
        """Ack all items until only dead ones remain, or none was delivered for longer than any delay."""
        client = self._recording(name, namespace, OPERATOR)
        topics = (*TOPICS, TOPIC, *MOVED_TOPICS, *((ATOMIC_TOPIC,) if self.has_atomic_calls else ()))
        topics += COMPLETED_TOPICS if self.has_completions else ()
        topics += GROUPED_TOPICS if self.has_groups else ()
        topics += (TURNS_TOPIC,) if self.has_turns else ()
        quiet_since = self.cluster.loop.time()
        while self.cluster.loop.time() - quiet_since < _QUIET_S and self._are_left(namespace):
            try:
                deliveries = await client.dequeue(dict.fromkeys(topics, 20), wait_ms=500)
            except Unavailable:
                continue  # for the checker it has waited and got nothing
            if deliveries:
                quiet_since = self.cluster.loop.time()
                await client.ack(deliveries)
        await client.client.close()

    def _are_left(self, namespace: str) -> bool:
        return any(row["state"] != "dead" for row in self.cluster.rows(namespace))

    async def _call(self, asked: Awaitable[T]) -> T:
        self.calls += 1
        return await asked


def _item(rng: Random, topic: str, payload: bytes) -> Item:
    return Item(
        topic=topic,
        payload=payload,
        priority=rng.choice((0, 0, 1, 5, -2_147_483_648, 2_147_483_647)),
        metadata=rng.choice((b"", b"meta")),
        delay_ms=rng.choice((None, None, None, 0, rng.randint(1, 1_500))),
        lease_ms=rng.randint(40, 1_200),
        ttl_ms=rng.choice((None, None, None, rng.randint(2_000, 4_000))),
        at_most_once=rng.random() < 0.1,
        attempts_max=rng.choice((None, None, 1, 3)),
        # Not drawn, so that the seeds play as they did without it.
        trace_context=b"trace of " + payload[:40] if crc32(payload) % 3 == 0 else None,
    )


def _change(rng: Random) -> Change:
    return Change(
        priority=rng.choice((0, -7, 9)),
        delay_ms=rng.choice((None, None, 0, rng.randint(1, 1_500))),
        metadata=rng.choice((None, b"changed")),
    )


def _nack(rng: Random, delivery: Delivery) -> Nack:
    return Nack(
        delivery.id,
        delivery.token,
        delay_ms=rng.choice((None, 0, rng.randint(1, 800))),
        metadata=rng.choice((None, b"tried")),
        dead=rng.random() < 0.1,
    )


__all__ = ["Incarnation", "Plan", "Run"]
