"""One session with ZooKeeper: kazoo, behind the event loop.

The only module that knows kazoo. Always true: kazoo's threads do nothing but
post to the loop, in the order in which the server said it; an object is one
session, and nothing is sent in its name once kazoo has said that it is over;
every future is answered, at the latest by `end`; what is kept of a node is what
the server last said of it, until it says that it has changed. Knows nothing of
documents and members.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias

from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import Connect
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from shardmgr.registry.port import RegistryFailed, RegistryOutcomeUnknown, RegistryUnreachable

log = logging.getLogger(__name__)

_RETRY_DELAY_S: Final = 0.05
_RETRY_DELAY_S_MAX: Final = 0.5
_CONNECT_TIMEOUT_FRACTION: Final = 4
"""This part of a session timeout without a connection, or an answer to a reconnect, and another one is tried."""

_REFUSALS: Final = (
    kazoo_errors.BadArgumentsError,
    kazoo_errors.InvalidACLError,
    kazoo_errors.NoChildrenForEphemeralsError,
    kazoo_errors.NotReadOnlyCallError,
    kazoo_errors.QuotaExceededError,
    kazoo_errors.ThrottledOpError,
    kazoo_errors.UnimplementedError,
)
"""Answers after which nothing was written."""


_WatchedRead: TypeAlias = tuple[str, str]
"""A request that looks at a node, and the node's path."""
_WATCHED_REQUESTS: Final = ("get", "exists", "get_children")
_NOT_CACHED: Final = object()


class _InlineQueue(queue.Queue[Any]):
    """Kazoo's queue of callbacks, each of which is called where it is put: by the thread that reads from the server.

    Kazoo has a thread for answers and another for watches. They would post in any order, and each costs a turn at the
    interpreter's lock.
    """

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        if callable(item):
            item()
        else:
            super().put(item, block, timeout)


class _InlineHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """Kazoo's threads, of which those that call back have nothing to do."""

    queue_impl = _InlineQueue


class NodeMissing(Exception):
    """There is no such node, or none to hold it."""


class NodeExists(Exception):
    """There is one already."""


class NodeChanged(Exception):
    """It has another version."""


class SessionListener(Protocol):
    """Who has sessions. Calls come on the event loop."""

    def on_connected(self, session: ZooKeeperSession, timeout_ms: int, sent_ms: int) -> None:
        """It is reached, for the first time or again. The server took up what was asked at `sent_ms`, for `timeout_ms`."""
        ...

    def on_suspended(self, session: ZooKeeperSession) -> None:
        """Its connection is gone."""
        ...

    def on_session_over(self, session: ZooKeeperSession) -> None:
        """It is over, or kazoo has given up; nothing more comes of it."""
        ...

    def on_watch_fired(self) -> None:
        """Something that was watched may have changed."""
        ...


class ZooKeeperSession:
    """Begins when made.

    Args:
        hosts: `host:port,host:port`.
        timeout_ms: of the session, as it is asked for; the server may shorten or lengthen it.
        credentials: user and password; what is created is then theirs alone, else everybody's.
        boot_ms: the boot-time clock; called by other threads too.
        logger: what kazoo says goes there.

    Raises:
        RegistryFailed: `hosts` is not a list of addresses.
    """

    def __init__(
        self,
        hosts: str,
        timeout_ms: int,
        credentials: tuple[str, str] | None,
        boot_ms: Callable[[], int],
        listener: SessionListener,
        logger: logging.Logger,
    ) -> None:
        self.session_id = 0
        """ZooKeeper's own for the session; 0 before it has begun."""
        self._acl = OPEN_ACL_UNSAFE if credentials is None else CREATOR_ALL_ACL
        self._boot_ms = boot_ms
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._is_over = False
        """Guarded by the lock: kazoo would go on with another session in the same object."""
        self._futures: dict[asyncio.Future[Any], None] = {}
        self._cache: dict[_WatchedRead, Any] = {}
        """Answers about nodes that are watched, and have not changed since: as many as paths are looked at."""
        self._loop_thread = threading.get_ident()
        self._granted_timeout = (timeout_ms, 0)
        """The timeout of the session, and when it was asked for."""
        self._closed: asyncio.Future[None] | None = None
        retry = KazooRetry(max_tries=-1, delay=_RETRY_DELAY_S, max_delay=_RETRY_DELAY_S_MAX)
        auth = None if credentials is None else [("digest", ":".join(credentials))]
        try:
            self._client = KazooClient(
                hosts,
                timeout_ms / 1000,
                handler=_InlineHandler(),
                connection_retry=retry,
                auth_data=auth,
                logger=logger,
            )
        except (ValueError, kazoo_errors.ConfigurationError) as error:
            raise RegistryFailed(f"{hosts!r} is not a list of host:port,host:port: {error}") from error
        self._intercept_connects()
        self._client.add_listener(self._on_kazoo_state)
        self._client.start_async()

    # ------------------------------------------------------------------- calls

    async def call(self, is_write: bool, request: str, path: str, *args: Any, **more: Any) -> Any:
        """The answer to one of kazoo's requests, named without its `_async`.

        Raises:
            NodeMissing, NodeExists, NodeChanged: nothing was written.
            RegistryFailed: nothing was written.
            RegistryOutcomeUnknown: only where `is_write`; it was sent, perhaps, and not answered.
        """
        try:
            return await self.submit(request, path, *args, **more)
        except kazoo_errors.NoNodeError:
            raise NodeMissing(path) from None
        except kazoo_errors.NodeExistsError:
            raise NodeExists(path) from None
        except kazoo_errors.BadVersionError:
            raise NodeChanged(path) from None
        except kazoo_errors.NoAuthError:
            raise RegistryFailed(
                f"ZooKeeper does not let this user {request} {path}: use the credentials with which it was created, or change its ACL"
            ) from None
        except _REFUSALS as error:
            raise RegistryFailed(f"ZooKeeper refuses to {request} {path}: {type(error).__name__}") from error
        except kazoo_errors.KazooException as error:
            text = (
                f"ZooKeeper has not answered to {request} {path}: {type(error).__name__}; read again when it is reached"
            )
            raise (RegistryOutcomeUnknown if is_write else RegistryUnreachable)(text) from error

    async def call_watched(self, request: str, path: str) -> Any:
        """As `call`; the node is watched, and the answer kept until it may have changed. Without a node, only `exists` is."""
        return await self.call(False, request, path, watch=self._on_watch_event)

    def cached(self, request: str, path: str) -> Any:
        """What `look` was answered, where that is still so as far as the server has said; None where nothing is kept.

        A server tells of a change before it lets anything be seen of it. So whatever is kept once a later request was
        answered is no older than that answer.
        """
        return self._cache.get((request, path))

    def is_missing(self, path: str) -> bool:
        """`look` has found that there is no such node, as `kept` says."""
        return self._cache.get(("exists", path), _NOT_CACHED) is None

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        """Creates a node, and those above it. Raises as `call` does."""
        try:
            await self.call(True, "create", path, data, self._acl, ephemeral)
        except NodeMissing:
            parent = path.rpartition("/")[0]
            if not parent:
                raise RegistryFailed(f"ZooKeeper has no node that could hold {path}: create its root folder") from None
            with contextlib.suppress(NodeExists):
                await self.create(parent, b"")
            await self.call(True, "create", path, data, self._acl, ephemeral)

    def submit(self, request: str, path: str, *args: Any, **more: Any) -> asyncio.Future[Any]:
        """Sends a request. The future's exceptions are kazoo's, and `RegistryFailed` where nothing was sent."""
        future: asyncio.Future[Any] = self._loop.create_future()
        with self._lock:
            if self._is_over:
                future.set_exception(RegistryUnreachable("the session with ZooKeeper is over; nothing was asked"))
                return future
            self._futures[future] = None
            future.add_done_callback(self._discard_future)
            result = getattr(self._client, f"{request}_async")(path, *args, **more)
        look = (request, path) if "watch" in more else None

        def answered(done: Any) -> None:
            # Called by this thread it was answered before anybody listened: what has happened since may be posted already.
            kept = None if threading.get_ident() == self._loop_thread else look
            self._post_to_loop(self._on_answer, future, kept, done.value, done.exception)

        result.rawlink(answered)
        return future

    def reset_last_zxid(self) -> None:
        """For a session of which nothing is wanted but to hear how it ended.

        A server that knows less than a user has seen lets it wait for another one that knows more. Of a server that has
        lost its data, or was given an older copy, there is no other.
        """
        self._client.last_zxid = 0

    async def close(self, timeout_s: float) -> None:
        """Closes the session at the server where it is reached; waits for that at most so long. Safe to repeat."""
        if self._closed is None:
            self._closed = self._loop.create_future()
            with self._lock:
                self._is_over = True
            for future in list(self._futures):
                _resolve_future(future, None, kazoo_errors.ConnectionClosedError())
            # Kazoo joins its threads, for longer than anybody should wait; at exit nobody waits for a daemon.
            threading.Thread(target=self._stop_kazoo, name="zookeeper-stop", daemon=True).start()
        await asyncio.wait([self._closed], timeout=timeout_s)

    def _discard_future(self, future: asyncio.Future[Any]) -> None:
        del self._futures[future]
        if not future.cancelled():
            future.exception()

    # --------------------------------------------------------- kazoo's threads

    def _on_watch_event(self, event: Any) -> None:
        """The watch of every look: something has happened to a node, or, without a path, the connection is gone.

        Kazoo keeps it once for each path, and forgets it with the first event.
        """
        self._post_to_loop(self._on_node_change, event.path)

    def _intercept_connects(self) -> None:
        """Kazoo tells neither the timeout that the server grants nor when it asked for it; both pass here.

        And of one server it waits for a connection, and for the answer to a reconnect, for as long as a session may
        last: but a machine may be gone, and a server that is just starting may leave a connection open and never answer
        it (ZOOKEEPER-5051). To ask again is harmless: the session is the same. The answer to a first connect is waited
        for: each makes a session.
        """
        connection, handler = self._client._connection, self._client.handler
        invoke, dial = connection._invoke, handler.create_connection

        def patient(timeout_s: float) -> float:
            return min(timeout_s, self._granted_timeout[0] / _CONNECT_TIMEOUT_FRACTION / 1000)

        def dialled(*args: Any, timeout: float, **more: Any) -> Any:
            return dial(*args, timeout=patient(timeout), **more)

        def minded(timeout_s: float, request: Any, xid: int | None = None) -> Any:
            if not isinstance(request, Connect):
                return invoke(timeout_s, request, xid)
            sent_ms = self._boot_ms()
            answer = invoke(patient(timeout_s) if request.session_id else timeout_s, request, xid)
            if answer[0].time_out > 0:  # else the session is over, and so is this object
                self._granted_timeout = (answer[0].time_out, sent_ms)
            return answer

        handler.create_connection = dialled
        connection._invoke = minded

    def _on_kazoo_state(self, state: str) -> None:
        with self._lock:
            if self._is_over:
                return
            if state == KazooState.LOST:
                self._is_over = True
        if state == KazooState.CONNECTED:
            self._post_to_loop(self._on_connected, self._client.client_id[0], *self._granted_timeout)
        elif state == KazooState.SUSPENDED:
            self._post_to_loop(self._listener.on_suspended, self)
        else:
            self._post_to_loop(self._listener.on_session_over, self)

    def _stop_kazoo(self) -> None:
        try:
            self._client.stop()
            self._client.close()
        except Exception as error:
            log.warning("a session with ZooKeeper did not end cleanly: %s", error)
        self._post_to_loop(self._on_kazoo_stopped)

    def _post_to_loop(self, call: Callable[..., None], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is there to hear it
            self._loop.call_soon_threadsafe(call, *args)

    # ---------------------------------------------------------------- the loop

    def _on_answer(self, future: asyncio.Future[Any], cache_key: _WatchedRead | None, value: Any, error: Any) -> None:
        """Keeps the answer in the turn in which it comes: what is heard next may be that it has changed."""
        if cache_key is not None and error is None:
            self._cache[cache_key] = value
        _resolve_future(future, value, error)

    def _on_node_change(self, path: str | None) -> None:
        if path is None:
            self._cache.clear()
        else:
            for request in _WATCHED_REQUESTS:
                self._cache.pop((request, path), None)
        self._listener.on_watch_fired()

    def _on_connected(self, number: int, timeout_ms: int, sent_ms: int) -> None:
        self._cache.clear()  # no server watches over this connection what was asked over another
        self.session_id = number
        self._listener.on_connected(self, timeout_ms, sent_ms)

    def _on_kazoo_stopped(self) -> None:
        assert self._closed is not None
        if not self._closed.done():
            self._closed.set_result(None)


def _resolve_future(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)
