"""One host, built from its parts.

Builds the engine, the RPC server and the HTTP server from a `Config`, and
starts and stops them in a fixed order. Holds no logic of the queue.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from importlib.metadata import version
from typing import Any, Final, TypeVar

from foqs.access.audit_trail import AuditTrail
from foqs.access.authenticator import Authenticator
from foqs.access.host_secrets import read_host_keyring
from foqs.console.host_figures import HostFigures
from foqs.console.server import Console, ConsoleSettings
from foqs.console.session_secret import SessionSecret
from foqs.core.memory.demand import DemandSettings
from foqs.core.memory.reservations import CacheLimits
from foqs.host_constants import HOST_CONSTANTS, HostConstants
from foqs.host_tier import host_tier
from foqs.options.config import FRAME_OVERHEAD_BYTES, Config, ConfigError
from foqs.options.console_url import parse_console_url
from foqs.queue.bulk_jobs.bulk_job import BulkJobOwner
from foqs.queue.bulk_jobs.host_bulk_jobs import HostBulkJobs
from foqs.queue.call_limits import CallLimits
from foqs.queue.engine import Engine, EngineSettings
from foqs.queue.host_state import HostState
from foqs.routing.port import HostIdentity
from foqs.rpc.admin_handlers import admin_handlers
from foqs.rpc.audit import Audit
from foqs.rpc.audit_handlers import audit_handlers
from foqs.rpc.bulk_job_handlers import bulk_job_handlers
from foqs.rpc.bulk_job_pages import BulkCallPages
from foqs.rpc.host_service import host_service
from foqs.rpc.in_host_calls import InHostCalls
from foqs.rpc.methods import RpcService
from foqs.rpc.rpc_limits import RpcLimits
from foqs.rpc.server import RpcServer
from foqs.rpc.tls_acceptor import TlsAcceptor
from foqs.runtime.unwritten_replies import UnwrittenReplies
from foqs.sqs.dead_letter_sweep import DeadLetterSweep
from foqs.sqs.sqs_server import SqsServer
from foqs.surroundings import Surroundings
from foqs.telemetry.cluster_samples import job_samples
from foqs.telemetry.http_server import HttpServer
from foqs.telemetry.metrics import Metrics, Samples
from foqs.telemetry.samples import HostSampler
from foqs.telemetry.scale_page import ScalePage

log = logging.getLogger(__name__)

_T = TypeVar("_T")

START_STEPS: Final = (
    ("ports", "a port that is in use is found before a shard is touched"),
    ("session", "in a cluster, the catalog is in the registry"),
    ("catalog", "nothing is served without it"),
    ("HTTP server", "it says why the host is not ready yet"),
    ("console", "its port, too, may be in use"),
    ("shards", "those of a host alone recover from here on"),
    ("dead-letter sweep", "it moves items of the shards, of each from its recovery on"),
    ("plan", "in a cluster, other hosts know more until it was read; the wait is limited"),
    ("bulk jobs", "their pages are calls of this host"),
    ("Thrift listener", "calls that arrive before shards are served fail as UNAVAILABLE"),
    ("SQS listener", "its actions are calls of this host, so it accepts them last"),
)
"""The parts of a host in the order in which they start, each with the reason for its place."""
STOP_STEPS: Final = (
    ("Thrift listener", "no new connections are accepted; TLS handshakes are cancelled"),
    ("SQS listener", "it accepts no new connections either; its actions in progress are calls in flight"),
    ("console", "its pages make calls"),
    ("bulk jobs", "other hosts go on with them while the shards are still served"),
    ("dead-letter sweep", "it writes to shards; the next owner of each goes on with it"),
    ("long polls", "they get an empty reply at once, and their clients use other hosts"),
    ("plan", "in a cluster, other hosts take over the shards one by one while calls are still answered"),
    ("calls in flight, of Thrift and SQS", "they still need the shards"),
    ("shards", "they write their queued items and give up their ownership"),
    ("session", "in a cluster, shards that no host has taken over are written by now, and are free at once"),
    ("HTTP server", "/livez and /metrics are useful until the end"),
)
"""The parts of a host in the order in which they stop, each with the reason for its place."""
_JOBS_STOP_S: Final = 2.0
"""How long a page of a bulk job may take while the host stops."""


class StopRequested(Exception):
    """The host was asked to stop before it served anything."""


class ComposedHost:
    """A host process from its start to its stop."""

    def __init__(self, config: Config, surroundings: Surroundings, constants: HostConstants = HOST_CONSTANTS) -> None:
        self._config = config
        self._rng = surroundings.rng
        self._clock = clock = surroundings.clock
        self._nonce = surroundings.nonce
        self._metrics = Metrics()
        self.stop_requested = asyncio.Event()
        """Set when the host must stop; it ends a start that waits."""
        self._replies = UnwrittenReplies(asyncio.get_running_loop())
        state = HostState(config.namespace, config.server.tier, clock.stopwatch_s)
        self._tier = tier = host_tier(config, state, surroundings, constants.planner)
        settings = _engine_settings(config, constants, tier.shards)
        self._rpc_limits = RpcLimits.of(config.rpc, config.calls, constants.rpc)
        self._timeout_s = settings.calls.timeout_ms_default / 1_000
        self._authentication = constants.authentication
        self._engine = Engine(
            settings,
            state,
            tier.tier,
            surroundings.open_store,
            tier.coordinator,
            tier.catalog,
            clock,
            self._rng,
            self._metrics,
            self._replies,
        )
        self._figures = tier.figures(self._engine)
        self._jobs = HostBulkJobs(tier.documents, self._engine.namespaces, clock.wall_ms, self._rng, self._metrics)
        self._http = HttpServer(self._metrics, self._not_ready_reasons, self._console_sentence)
        self._ports: dict[str, int] = {}
        """The ports that were found, by option."""
        self.working: list[asyncio.Future[None]] = []
        """The futures of the parts that run; each ends only if the host must stop, most with the error."""
        self._service: RpcService
        self._rpc_server: RpcServer
        self._sampler: HostSampler
        self._thrift_listener: asyncio.Server
        self._engine_task: asyncio.Future[None]
        self._sweep_task: asyncio.Future[None]
        self._console: Console | None = None
        self._authenticator: Authenticator | None = None
        self._tls_acceptor: TlsAcceptor | None = None
        self._sqs_server = SqsServer(config, self._rpc_limits, self._timeout_s) if config.server.sqs_port >= 0 else None

    @property
    def is_ready(self) -> bool:
        """Whether every shard is served, has its key slots, and its store answers."""
        return self._engine.is_ready

    @property
    def became_ready(self) -> asyncio.Event:
        """Set once every shard is served."""
        return self._engine.became_ready

    async def start(self) -> Config:
        """Start the parts in the order of `START_STEPS`; return the configuration with its actual ports.

        Raises:
            CatalogError, RegistryError: no shard can be served, for this reason; call `abandon`.
            StopRequested: the host must stop; call `abandon`.
        """
        steps: dict[str, Callable[[], Awaitable[None]]] = {
            "ports": self._bind_ports,
            "session": lambda: self._run_unless_stopped(self._tier.open()),
            "catalog": lambda: self._run_unless_stopped(self._engine.open()),
            "HTTP server": self._start_http,
            "console": self._start_console,
            "shards": self._start_shards,
            "dead-letter sweep": self._start_sweep,
            "plan": self._follow_plan,
            "bulk jobs": self._start_jobs,
            "Thrift listener": lambda: self._thrift_listener.start_serving(),
            "SQS listener": self._start_sqs,
        }
        for step, _ in START_STEPS:
            await steps[step]()
        server = self._config.server.model_copy(update=self._ports)
        return self._config.model_copy(update={"server": server})

    async def _bind_ports(self) -> None:
        server = self._config.server
        self._thrift_listener = await asyncio.get_running_loop().create_server(
            self._new_connection, server.host, server.port, start_serving=False
        )
        self._ports["port"] = int(self._thrift_listener.sockets[0].getsockname()[1])
        self._ports["sqs_port"] = -1 if self._sqs_server is None else await self._sqs_server.bind()
        self._make_servers()

    def _make_servers(self) -> None:
        """Build the service and the servers of the ports, which do not serve yet."""
        config, server, engine = self._config, self._config.server, self._engine
        identity = HostIdentity(
            host=server.host,
            port=self._ports["port"],
            routing_version=self._rng.getrandbits(62),
            region=server.region,
            tier=server.tier,
            program_version=version("foqs"),
        )
        trail = AuditTrail()
        audit = Audit(trail, self._clock.wall_ms)
        handlers = {
            **admin_handlers(engine.admin, server.tier, self._clock.wall_ms),
            **bulk_job_handlers(self._jobs.calls, engine.namespaces.settings_of),
            **audit_handlers(trail, self._host_name),
            **self._tier.handlers,
        }
        layer, topics = self._tier.layer(engine.admin.refresh), self._tier.topics(engine.queue)
        self._service = service = host_service(
            engine.queue, self._tier.cluster(identity), self._rng, handlers, layer, topics
        )
        keyring = read_host_keyring(config)
        if config.auth.enabled:
            administrators = [name for name, options in config.auth.principals.items() if options.admin]
            grants = engine.namespaces.permissions_of
            self._authenticator = Authenticator(keyring, administrators, grants, self._metrics, self._authentication)
        self._rpc_server = RpcServer(
            asyncio.get_running_loop(),
            service,
            self._rpc_limits,
            self._metrics.call,
            self._authenticator,
            self._clock.stopwatch_s,
            self._replies,
            audit,
        )
        self._sampler = HostSampler(engine, self._rpc_server, self._clock.stopwatch_s)
        engine.admin.add_change_listener(self._rpc_server.refuse_waits)
        if self._sqs_server is not None:
            self._sqs_server.attach(
                service, engine.admin, self._jobs.calls, self._authenticator, self._clock, self._metrics, audit
            )
        if keyring.tls_context is not None:
            self._tls_acceptor = TlsAcceptor(self._rpc_server, keyring.tls_context, self._metrics.handshake_failed)
            if self._sqs_server is not None:
                self._sqs_server.use_tls(keyring.tls_context, self._metrics.handshake_failed)
        if self._authenticator is not None or self._tls_acceptor is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload_keyring)

    async def _start_http(self) -> None:
        figures, settings_of = self._figures, self._engine.namespaces.settings_of
        page = ScalePage(figures.list_topics, figures.is_partial, figures.rates, settings_of, self._authenticator)
        self._http.add_page("/scale", page.answer)
        server = self._config.server
        self._ports["http_port"] = await self._http.start(server.http_host, server.http_port)

    async def _start_shards(self) -> None:
        self._metrics.add_sampler(self._samples)
        self._engine.start()
        self._engine_task = asyncio.ensure_future(self._engine.run())
        self.working.append(self._engine_task)

    async def _start_sweep(self) -> None:
        """Move dead letters of the shards of this host, whether it has an SQS server or not."""
        engine = self._engine
        sweep = DeadLetterSweep(engine.admin.document, engine.shards, engine.queue.bulk, self._timeout_s)
        self._sweep_task = asyncio.ensure_future(sweep.run())

    async def _follow_plan(self) -> None:
        self.working += await self._tier.start(self._engine, self._ports["port"])

    async def _start_jobs(self) -> None:
        """Work on bulk jobs. Their pages are calls of this host."""
        self._jobs.start(
            BulkCallPages(InHostCalls(self._service, self._rpc_limits.reply_grace_ms / 1_000)),
            BulkJobOwner(self._host_name, self._nonce),
            self._tier.running_hosts,
        )

    async def _start_sqs(self) -> None:
        if self._sqs_server is not None:
            await self._sqs_server.serve()

    @property
    def _host_name(self) -> str:
        server = self._config.server
        return server.name or f"{server.host}:{self._ports['port']}"

    async def _start_console(self) -> None:
        """Start the console if it is wanted."""
        server = self._config.server
        if not server.console:
            return
        settings = ConsoleSettings(
            host_name=self._host_name,
            is_cluster=not self._tier.tier.is_alone,
            authenticator=self._authenticator,
            secret=SessionSecret(self._tier.secrets),
            permissions_of=self._engine.namespaces.permissions_of,
            namespaces=lambda: self._engine.admin.document().namespaces,
            tls=None if self._tls_acceptor is None else self._tls_acceptor.context,
            url=parse_console_url(server.console_url),
            limits=self._rpc_limits,
            on_handshake_failed=self._metrics.handshake_failed,
            now_s=time.time,
            figures=HostFigures(
                self._engine, self._figures, self._not_ready_reasons, self._clock.stopwatch_s, time.thread_time
            ),
        )
        console = Console(
            settings,
            lambda authenticated, address: self._rpc_server.connection(authenticated, f"console {address}".strip()),
        )
        self._ports["console_port"] = await console.start(server.console_host, server.console_port)
        self._console = console

    def _console_sentence(self) -> str:
        """Return a sentence that says where the console is."""
        if self._console is None:
            return "The console is off; server.console turns it on."
        url = self._config.server.console_url
        return f"The console is at {url}." if url else f"The console is on port {self._ports['console_port']}."

    async def _run_unless_stopped(self, opening: Coroutine[Any, Any, _T]) -> _T:
        """Run a part of the start that may never end, and return its result. Raises StopRequested when the host must stop."""
        work, stop = asyncio.ensure_future(opening), asyncio.ensure_future(self.stop_requested.wait())
        try:
            await asyncio.wait((work, stop), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise StopRequested
            return work.result()
        finally:
            work.cancel()
            stop.cancel()
            await asyncio.gather(work, stop, return_exceptions=True)

    def _samples(self) -> Samples:
        return {**self._sampler.sample(), **job_samples(self._jobs.jobs), **self._tier.samples()}

    def _new_connection(self) -> asyncio.BaseProtocol:
        """Return a protocol for one accepted connection."""
        return self._rpc_server.connection() if self._tls_acceptor is None else self._tls_acceptor.connection()

    def _close_thrift_listener(self) -> None:
        """Accept no more connections, and end the TLS handshakes."""
        self._thrift_listener.close()
        if self._tls_acceptor is not None:
            self._tls_acceptor.close()

    def _close_sqs_listener(self) -> None:
        if self._sqs_server is not None:
            self._sqs_server.close()

    def _reload_keyring(self) -> None:
        """Read the files of tokens and certificates again; if one is unusable, keep the old ones.

        Closes connections whose token, or whose clients' CA, was removed. Other
        settings are read only at the start.
        """
        try:
            keyring = read_host_keyring(self._config)
        except ConfigError as error:
            log.error("the tokens and certificates could not be read again; the former ones stay in use: %s", error)  # noqa: TRY400 - it says what to do
            return
        if self._tls_acceptor is not None and keyring.tls_context is not None:
            self._tls_acceptor.context = keyring.tls_context
            if self._sqs_server is not None:
                self._sqs_server.use_tls(keyring.tls_context, self._metrics.handshake_failed)
            if self._console is not None:
                self._console.use_certificate(keyring.tls_context)
        if self._authenticator is not None:
            self._authenticator.keyring = keyring
            self._rpc_server.close_revoked()
        log.info("tokens and certificates were read again")

    async def abandon(self) -> None:
        """End a start that failed before any shard was served."""
        self._close_thrift_listener()
        self._close_sqs_listener()
        await self._tier.close()

    async def stop(self) -> None:
        """Stop the parts in the order of `STOP_STEPS`; parts that exceed the stop timeout are aborted."""
        loop = asyncio.get_running_loop()
        engine_task = self._engine_task
        deadline = loop.time() + self._config.server.stop_timeout_ms / 1000

        async def thrift_listener() -> None:
            self._close_thrift_listener()

        async def sqs_listener() -> None:
            self._close_sqs_listener()

        async def console() -> None:
            if self._console is not None:
                await self._console.stop()

        async def bulk_jobs() -> None:
            await self._jobs.stop(max(0.0, min(_JOBS_STOP_S, deadline - loop.time())))

        async def dead_letter_sweep() -> None:
            self._sweep_task.cancel()

        async def long_polls() -> None:
            self._engine.queue.stop_long_polls()

        async def plan() -> None:
            await self._tier.leave(deadline)

        async def calls_in_flight() -> None:
            sqs = () if self._sqs_server is None else (self._sqs_server.stop(deadline),)
            await asyncio.gather(self._rpc_server.stop(deadline), *sqs)

        async def shards() -> None:
            self._engine.on_release_requested()
            await asyncio.wait((engine_task,), timeout=max(deadline - loop.time(), 1.0))
            await self._engine.abort()
            await asyncio.gather(engine_task, return_exceptions=True)

        steps: dict[str, Callable[[], Awaitable[None]]] = {
            "Thrift listener": thrift_listener,
            "SQS listener": sqs_listener,
            "console": console,
            "bulk jobs": bulk_jobs,
            "dead-letter sweep": dead_letter_sweep,
            "long polls": long_polls,
            "plan": plan,
            "calls in flight, of Thrift and SQS": calls_in_flight,
            "shards": shards,
            "session": self._tier.close,
            "HTTP server": self._http.stop,
        }
        for step, reason in STOP_STEPS:
            log.info("stopping the %s: %s", step, reason)
            await steps[step]()
        log.info("the host has stopped")

    def _not_ready_reasons(self) -> Mapping[str, str]:
        return {**self._engine.not_ready_reasons(), **self._tier.not_ready_reasons()}


# ------------------------------------------------------- config to settings


def _engine_settings(
    config: Config, constants: HostConstants, standalone_shards: Mapping[int, str] | None
) -> EngineSettings:
    """Return the engine settings of a configuration."""
    return EngineSettings(
        standalone_shards=standalone_shards,
        namespace=config.namespace,
        calls=CallLimits.of(config.calls, constants.calls),
        shard=config.shard,
        shard_constants=constants.shard,
        cache=CacheLimits.of_bytes(config.row_cache.written_bytes_max, config.row_cache.prefetched_bytes_max),
        demand=DemandSettings(),
        item_bytes_max=config.rpc.frame_bytes_max - FRAME_OVERHEAD_BYTES,
        tier=config.server.tier,
    )
