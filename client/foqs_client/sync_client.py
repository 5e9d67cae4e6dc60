"""The client for code without an event loop. Each call of `Client` runs in a background thread.

with SyncClient("foqs://127.0.0.1:7411") as client:
    client.enqueue([Item(topic="mail", payload=b"hello")])
    for delivery in client.dequeue({"mail": 10}, wait_ms=1_000):
        client.ack([delivery])

Holds `SyncClient`. Always true: every method here is the method of `Client`, made
blocking by one line. Arguments, results and errors are the same. Knows nothing of
single calls.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeAlias, TypeVar
from weakref import finalize

from foqs_client import errors
from foqs_client.background_loop import BackgroundLoop, GiveBack, LoopClosed, MakeCoroutine
from foqs_client.client import Client

P = ParamSpec("P")
T = TypeVar("T")
_Init: TypeAlias = Callable[["SyncClient", Client], None]


def _blocking(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, T]],
    give_back: Callable[[Client, T], None] | None = None,
) -> Callable[Concatenate[SyncClient, P], T]:
    """Return a method that runs the client's method and waits for its result. See `BackgroundLoop.run`."""

    @wraps(method)
    def call(self: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        unread: GiveBack[T] | None = None if give_back is None else partial(give_back, self._client)
        return self._run(lambda: method(self._client, *args, **kwargs), unread)

    return call


def _constructed_like(make: Callable[P, Client]) -> Callable[[_Init], Callable[Concatenate[SyncClient, P], None]]:
    """Return a decorator that gives a constructor the parameters of the client's."""

    def decorate(init: _Init) -> Callable[Concatenate[SyncClient, P], None]:
        @wraps(init)
        def construct(self: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> None:
            init(self, make(*args, **kwargs))

        return construct

    return decorate


class SyncClient:
    """The client for code without an event loop: a `Client` whose methods block.

    Arguments, results and errors are those of `Client`. Use it as
    `with SyncClient("foqs://127.0.0.1:7411") as client:`.

    - Several threads may use it at once. It starts its own thread with the first call.
    - Ctrl-C in a call cancels that call; the client stays usable. Items of a dequeue that nobody reads are released.
    - `close`, the end of the `with` block and the exit of the interpreter end calls in
      flight as if the connection was lost.
    - A process that forks must make a new client in the child, unless this one was not
      used before the fork.
    - In a running event loop, use `Client`: a call here raises RuntimeError, because it
      would block the loop.
    """

    @_constructed_like(Client)
    def __init__(self, client: Client) -> None:
        self._client = client
        self._background = BackgroundLoop("foqs-client")
        self._finalize: Callable[[], object] = finalize(self, self._background.close, client.close)

    @classmethod
    def wrap(cls, client: Client, background: BackgroundLoop) -> Self:
        """Return a blocking client over a client and a thread that the caller ends."""
        self = cls.__new__(cls)
        self._client = client
        self._background = background
        self._finalize = lambda: background.run(client.close)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and end the thread. Calls in flight end as if the connection was lost. Safe to repeat."""
        with suppress(LoopClosed):
            self._finalize()

    @property
    def is_connected(self) -> bool:
        """Whether a connection to one of the named hosts is open."""
        return self._client.is_connected

    enqueue = _blocking(Client.enqueue)
    dequeue = _blocking(Client.dequeue, Client._release_unread)
    ack = _blocking(Client.ack)
    complete = _blocking(Client.complete)
    nack = _blocking(Client.nack)
    extend = _blocking(Client.extend)
    release = _blocking(Client.release)
    cancel = _blocking(Client.cancel)
    topics = _blocking(Client.topics)
    groups = _blocking(Client.groups)
    item = _blocking(Client.item)
    explain = _blocking(Client.explain)
    peek = _blocking(Client.peek)
    list_items = _blocking(Client.list_items)
    audit = _blocking(Client.audit)
    bulk_job = _blocking(Client.bulk_job)
    bulk_jobs = _blocking(Client.bulk_jobs)
    cancel_matching = _blocking(Client.cancel_matching)
    control_bulk_job = _blocking(Client.control_bulk_job)
    count = _blocking(Client.count)
    create_namespace = _blocking(Client.create_namespace)
    dead = _blocking(Client.dead)
    delete_namespace = _blocking(Client.delete_namespace)
    extend_held_leases = _blocking(Client.extend_held_leases)
    export_config = _blocking(Client.export_config)
    get_namespace = _blocking(Client.get_namespace)
    keys_until_ms = _blocking(Client.keys_until_ms)
    grants = _blocking(Client.grants)
    incarnation = _blocking(Client.incarnation)
    import_config = _blocking(Client.import_config)
    list_namespaces = _blocking(Client.list_namespaces)
    pause_topic = _blocking(Client.pause_topic)
    set_topic_policy = _blocking(Client.set_topic_policy)
    topic_policies = _blocking(Client.topic_policies)
    purge_topic = _blocking(Client.purge_topic)
    move = _blocking(Client.move)
    move_matching = _blocking(Client.move_matching)
    redrive = _blocking(Client.redrive)
    redrive_matching = _blocking(Client.redrive_matching)
    restore = _blocking(Client.restore)
    resume_topic = _blocking(Client.resume_topic)
    set_grant = _blocking(Client.set_grant)
    start_bulk_job = _blocking(Client.start_bulk_job)
    update = _blocking(Client.update)
    update_matching = _blocking(Client.update_matching)
    update_namespace = _blocking(Client.update_namespace)
    usage = _blocking(Client.usage)
    routing = _blocking(Client.routing)
    refresh_routing = _blocking(Client.refresh_routing)
    list_hosts = _blocking(Client.list_hosts)
    drain_host = _blocking(Client.drain_host)
    undrain_host = _blocking(Client.undrain_host)
    list_shards = _blocking(Client.list_shards)
    add_shard = _blocking(Client.add_shard)
    remove_shard = _blocking(Client.remove_shard)
    move_shard = _blocking(Client.move_shard)
    drain_shard = _blocking(Client.drain_shard)
    undrain_shard = _blocking(Client.undrain_shard)

    def _run(self, make_coroutine: MakeCoroutine[T], give_back: GiveBack[T] | None = None) -> T:
        try:
            return self._background.run(make_coroutine, give_back)
        except LoopClosed as closed:
            if closed.was_started:
                raise errors.UnknownOutcome(
                    "the client was closed during the call; the call may have taken effect, so check before you repeat it"
                ) from None
            raise errors.Unreachable("the client is closed; make a new one") from None
