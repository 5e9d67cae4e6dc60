"""One session with ZooKeeper: kazoo, behind the event loop.

This is the only module that knows kazoo. Always true: kazoo's threads only post to
the loop, in the order of the server's messages; an object is one session, and nothing
is sent in it after kazoo has reported its end; every future is resolved, at the latest
by `close`; a cached value is the server's last answer until it reports a change.
Knows nothing of documents and members.
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
"""Another server is tried after this part of a session timeout without a connection or an answer to a reconnect."""

_REFUSALS: Final = (
    kazoo_errors.BadArgumentsError,
    kazoo_errors.InvalidACLError,
    kazoo_errors.NoChildrenForEphemeralsError,
    kazoo_errors.NotReadOnlyCallError,
    kazoo_errors.QuotaExceededError,
    kazoo_errors.ThrottledOpError,
    kazoo_errors.UnimplementedError,
)
"""Errors after which nothing was written."""


_WatchedRead: TypeAlias = tuple[str, str]
"""A read request and the path of its node."""
_WATCHED_REQUESTS: Final = ("get", "exists", "get_children")
_NOT_CACHED: Final = object()


class _InlineQueue(queue.Queue[Any]):
    """Kazoo's queue of callbacks, which calls each at once, in the thread that reads from the server.

    Kazoo's own threads for answers and for watches would post in any order, and each costs a turn at the interpreter's
    lock.
    """

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        if callable(item):
            item()
        else:
            super().put(item, block, timeout)


class _InlineHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """Kazoo's threads; those for callbacks have nothing to do."""

    queue_impl = _InlineQueue


class NodeMissing(Exception):
    """There is no such node, or no parent for it."""


class NodeExists(Exception):
    """There is already such a node."""


class NodeChanged(Exception):
    """The node has another version than the one that the write was to replace."""


class SessionListener(Protocol):
    """The owner of a `ZooKeeperSession`. Calls come on the event loop."""

    def on_connected(self, session: ZooKeeperSession, timeout_ms: int, sent_ms: int) -> None:
        """The session is connected, for the first time or again. The server granted `timeout_ms` to a request sent at `sent_ms`."""
        ...

    def on_suspended(self, session: ZooKeeperSession) -> None:
        """The connection was lost."""
        ...

    def on_session_over(self, session: ZooKeeperSession) -> None:
        """The session is over, or kazoo has given up. No call follows."""
        ...

    def on_watch_fired(self) -> None:
        """A watched node may have changed."""
        ...


class ZooKeeperSession:
    """A session that starts with its construction.

    Args:
        hosts: `host:port,host:port`.
        timeout_ms: the requested timeout; the server may grant another.
        credentials: (user, password); only this user may use the created nodes. None: everybody may.
        boot_ms: the boot-time clock; called by other threads too.
        logger: kazoo's logger.

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
        """ZooKeeper's id of the session; 0 before it has started."""
        self._acl = OPEN_ACL_UNSAFE if credentials is None else CREATOR_ALL_ACL
        self._boot_ms = boot_ms
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._is_over = False
        """Whether the session is over; guarded by the lock. Kazoo would continue with another session in the same object."""
        self._futures: dict[asyncio.Future[Any], None] = {}
        self._cache: dict[_WatchedRead, Any] = {}
        """Answers about watched nodes that have not changed since, one for each path that is read."""
        self._loop_thread = threading.get_ident()
        self._granted_timeout = (timeout_ms, 0)
        """The timeout of the session, and when it was requested."""
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
            raise RegistryFailed(
                f"{hosts!r} is not a list of servers: {error}; write zk1:2181,zk2:2181,zk3:2181"
            ) from error
        self._intercept_connects()
        self._client.add_listener(self._on_kazoo_state)
        self._client.start_async()

    # ------------------------------------------------------------------- calls

    async def call(self, is_write: bool, request: str, path: str, *args: Any, **more: Any) -> Any:
        """Return the answer to a request of kazoo, named without `_async`.

        Raises:
            NodeMissing, NodeExists, NodeChanged: nothing was written.
            RegistryFailed: nothing was written.
            RegistryOutcomeUnknown: only with `is_write`; it may have been sent and was not answered.
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
            raise RegistryFailed(
                f"ZooKeeper refuses to {request} {path}: {type(error).__name__}; see the log of ZooKeeper"
            ) from error
        except kazoo_errors.KazooException as error:
            text = (
                f"ZooKeeper has not answered to {request} {path}: {type(error).__name__}; read again when it is reached"
            )
            raise (RegistryOutcomeUnknown if is_write else RegistryUnreachable)(text) from error

    async def call_watched(self, request: str, path: str) -> Any:
        """As `call`, but watch the node and cache the answer until it may have changed. A missing node is watched by `exists` only."""
        return await self.call(False, request, path, watch=self._on_watch_event)

    def cached(self, request: str, path: str) -> Any:
        """Return the cached answer of `call_watched`; None if there is none.

        A server reports a change before any later answer shows it. So a value that is still cached after the answer to
        another request is no older than that answer.
        """
        return self._cache.get((request, path))

    def is_missing(self, path: str) -> bool:
        """Return whether the cache knows that there is no such node."""
        return self._cache.get(("exists", path), _NOT_CACHED) is None

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        """Create a node and its parents. Raises as `call`."""
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
        """Send a request. The future raises kazoo's errors, and `RegistryFailed` if nothing was sent."""
        future: asyncio.Future[Any] = self._loop.create_future()
        with self._lock:
            if self._is_over:
                future.set_exception(RegistryUnreachable("the session with ZooKeeper is over; nothing was asked"))
                return future
            self._futures[future] = None
            future.add_done_callback(self._discard_future)
            result = getattr(self._client, f"{request}_async")(path, *args, **more)
        watched_read = (request, path) if "watch" in more else None

        def on_answered(done: Any) -> None:
            # In this thread the answer came before the link: later changes may be posted already, so it is not cached.
            cache_key = None if threading.get_ident() == self._loop_thread else watched_read
            self._post_to_loop(self._on_answer, future, cache_key, done.value, done.exception)

        result.rawlink(on_answered)
        return future

    def reset_last_zxid(self) -> None:
        """Let any server end the session, also one that has seen less than this client.

        Such a server normally makes a client wait for a newer server. If a server lost its data or got an older copy,
        there is no newer one.
        """
        self._client.last_zxid = 0

    async def close(self, timeout_s: float) -> None:
        """Close the session at the server if it is reached; wait at most `timeout_s` for that. Safe to repeat."""
        if self._closed is None:
            self._closed = self._loop.create_future()
            with self._lock:
                self._is_over = True
            for future in list(self._futures):
                _resolve_future(future, None, kazoo_errors.ConnectionClosedError())
            # Kazoo joins its threads, which takes too long to wait for; a daemon thread does not delay the exit.
            threading.Thread(target=self._stop_kazoo, name="zookeeper-stop", daemon=True).start()
        await asyncio.wait([self._closed], timeout=timeout_s)

    def _discard_future(self, future: asyncio.Future[Any]) -> None:
        del self._futures[future]
        if not future.cancelled():
            future.exception()

    # --------------------------------------------------------- kazoo's threads

    def _on_watch_event(self, event: Any) -> None:
        """A watched node has changed or, without a path, the connection is lost.

        Kazoo stores this watch once per path and drops it with the first event.
        """
        self._post_to_loop(self._on_node_change, event.path)

    def _intercept_connects(self) -> None:
        """Record the granted timeout and when it was requested, and shorten kazoo's waits for a server.

        Kazoo reports neither. And it waits a whole session timeout for a connection or the answer to a reconnect, but a
        machine may be gone, and a starting server may leave a connection open without an answer (ZOOKEEPER-5051).
        Another reconnect is harmless, as the session is the same. The wait for the answer to a first connect stays:
        each first connect makes a session.
        """
        connection, handler = self._client._connection, self._client.handler
        invoke, dial = connection._invoke, handler.create_connection

        def shortened(timeout_s: float) -> float:
            return min(timeout_s, self._granted_timeout[0] / _CONNECT_TIMEOUT_FRACTION / 1000)

        def create_connection(*args: Any, timeout: float, **more: Any) -> Any:
            return dial(*args, timeout=shortened(timeout), **more)

        def invoke_recording_timeout(timeout_s: float, request: Any, xid: int | None = None) -> Any:
            if not isinstance(request, Connect):
                return invoke(timeout_s, request, xid)
            sent_ms = self._boot_ms()
            answer = invoke(shortened(timeout_s) if request.session_id else timeout_s, request, xid)
            if answer[0].time_out > 0:  # else the session is over, and so is this object
                self._granted_timeout = (answer[0].time_out, sent_ms)
            return answer

        handler.create_connection = create_connection
        connection._invoke = invoke_recording_timeout

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
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(call, *args)

    # ---------------------------------------------------------------- the loop

    def _on_answer(self, future: asyncio.Future[Any], cache_key: _WatchedRead | None, value: Any, error: Any) -> None:
        """Cache the answer in the turn in which it comes, as the next message may report a change."""
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
        self._cache.clear()  # watches of another connection do not work in this one
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
