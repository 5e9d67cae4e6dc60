"""A host in memory, the relay of the suite's database, and a worker when the suite asks for one."""

import asyncio
import threading
import uuid
from contextlib import contextmanager

from django.db import connection

from foqs.testing import FakeHost
from foqs_client.consumer import Consumer
from foqs_client.django.driver_connections import outbox_connection
from foqs_client.django.task_runs import run_in_thread
from foqs_client.outbox.relay_loop import Relay
from foqs_client.outbox.relay_queue import ClientQueue
from foqs_client.outbox.relay_tables import RelayTables

_PAUSE_S = 0.01
_loop = asyncio.new_event_loop()
_clients = []


@contextmanager
def running():
    """Run the host and the relay in a thread of their own."""
    ready, stop = threading.Event(), asyncio.Event()

    async def serve():
        async with FakeHost() as fake:
            _clients.append(fake.client())
            relay = Relay(RelayTables(outbox_connection("default"), uuid.uuid4().hex), ClientQueue(_clients[0]))
            relaying = asyncio.ensure_future(relay.run())
            ready.set()
            await stop.wait()
            relay.stop()
            await relaying

    thread = threading.Thread(target=_loop.run_until_complete, args=(serve(),))
    thread.start()
    ready.wait()
    yield
    _loop.call_soon_threadsafe(stop.set)
    thread.join()


def work(topics):
    """Wait until all rows are relayed, and run the tasks of some topics that are ready."""
    asyncio.run_coroutine_threadsafe(_work(topics), _loop).result()


async def _work(topics):
    [client] = _clients
    while await asyncio.to_thread(_row_count):
        await asyncio.sleep(_PAUSE_S)
    consumer = Consumer(client, run_in_thread, topics, concurrency=1)
    working = asyncio.ensure_future(consumer.run())
    while {topic.topic for topic in (await client.topics(states=["ready", "leased"])).topics} & set(topics):
        await asyncio.sleep(_PAUSE_S)
    consumer.stop()
    await working


def _row_count():
    from foqs_client.django.models import OutboxEntry

    try:
        return OutboxEntry.objects.count()
    finally:
        connection.close()
