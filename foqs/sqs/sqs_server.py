"""The SQS server of a host, put together from its parts, and its socket.

Knows nothing of what the parts do.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from foqs.access.authenticator import Authenticator
from foqs.catalog.administration import Administration
from foqs.core.limits.waiting_calls import WaitingCalls
from foqs.options.config import Config
from foqs.queue.bulk_jobs.bulk_jobs import BulkJobs
from foqs.rpc.audit import Audit
from foqs.rpc.in_host_calls import InHostCalls
from foqs.rpc.methods import RpcService
from foqs.rpc.rpc_limits import RpcLimits
from foqs.rpc.tls_acceptor import TlsAcceptor
from foqs.runtime.clock import Clock
from foqs.sqs.action_table import actions
from foqs.sqs.message_actions import MessageActions
from foqs.sqs.move_tasks import MoveTasks
from foqs.sqs.queue_actions import QueueActions
from foqs.sqs.queue_directory import QueueDirectory
from foqs.sqs.service import SqsService
from foqs.sqs.sqs_connections import SqsConnections
from foqs.telemetry.metrics import Metrics


def receive_places(limits: RpcLimits) -> int:
    """Return how many receives may wait. Each occupies a connection and a call; a quarter is left for other requests."""
    return max(1, min(limits.connections_max, limits.calls_in_flight_max) * 3 // 4)


class SqsServer:
    """Listens from `bind` to `close`, and serves from `serve` to `stop`.

    A server that is bound and does not serve yet accepts no connection.

    Args:
        timeout_s: the time for each call to the service; a receive adds its wait.
    """

    def __init__(self, config: Config, limits: RpcLimits, timeout_s: float) -> None:
        self._config = config
        self._limits = limits
        self._timeout_s = timeout_s
        self._listening: asyncio.Server
        self._make_connection: Callable[[], asyncio.BaseProtocol]
        self._listener: SqsConnections | None = None
        self._tls_acceptor: TlsAcceptor | None = None

    async def bind(self) -> int:
        """Bind the port and return it. Raises OSError if it is in use."""
        server = self._config.server
        self._listening = await asyncio.get_running_loop().create_server(
            lambda: self._make_connection(), server.host, server.sqs_port, start_serving=False
        )
        return int(self._listening.sockets[0].getsockname()[1])

    def attach(
        self,
        service: RpcService,
        admin: Administration,
        jobs: BulkJobs,
        authenticator: Authenticator | None,
        clock: Clock,
        metrics: Metrics,
        audit: Audit,
    ) -> None:
        """Connect the server with the service that the RPC server calls."""
        config, loop = self._config, asyncio.get_running_loop()

        def now_s() -> float:
            return clock.wall_ms() / 1_000

        limits, timeout_s = self._limits, self._timeout_s
        directory = QueueDirectory(admin, config.sqs, loop.time)
        calls = InHostCalls(service, limits.reply_grace_ms / 1_000)
        tasks = MoveTasks(directory, jobs, calls, timeout_s, loop.time)
        queues = QueueActions(directory, calls, tasks, timeout_s, now_s, loop.time)
        waiting = WaitingCalls(receive_places(limits), 0)
        messages = MessageActions(directory, calls, timeout_s, now_s, waiting, loop.time)
        sqs_service = SqsService(actions(queues, messages, tasks), directory, authenticator, now_s, audit)
        self._listener = SqsConnections(sqs_service, limits, metrics.call, clock.stopwatch_s)
        self._make_connection = self._listener.connection

    def use_tls(self, context: ssl.SSLContext, on_handshake_failed: Callable[[], None]) -> None:
        """Accept only TLS from now on."""
        assert self._listener is not None, "attach comes first"
        if self._tls_acceptor is not None:
            self._tls_acceptor.context = context
            return
        self._tls_acceptor = TlsAcceptor(self._listener, context, on_handshake_failed, "https://")
        self._make_connection = self._tls_acceptor.connection

    async def serve(self) -> None:
        """Start to accept connections."""
        await self._listening.start_serving()

    def close(self) -> None:
        """Accept no more connections, and close each after its next reply."""
        self._listening.close()
        if self._listener is not None:
            self._listener.close_after_replies()
        if self._tls_acceptor is not None:
            self._tls_acceptor.close()

    async def stop(self, deadline: float) -> None:
        """End the connections; requests in flight have until `deadline`."""
        if self._listener is not None:
            await self._listener.stop(deadline)
