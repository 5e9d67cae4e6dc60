"""A whole run, from the start of the host to the proof.

Always true: the host, the workers and the temporary folders are gone at its end.
`demo_producer` and `demo_consumer` show how the queue is used.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import secrets
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Final

from foqs.demo import demo_host, file_work, proof, run_files
from foqs.demo.demo_consumer import DemoConsumer
from foqs.demo.demo_host import DemoFailed, DemoHost
from foqs.demo.demo_producer import DemoProducer
from foqs.demo.display import Display, format_bytes
from foqs.demo.ledger import RunLedger
from foqs_client import Client, FoqsError
from foqs_contract.plurals import counted

INTERRUPTED: Final = 130
PORT: Final = 7411
HTTP_PORT: Final = 7412
DATA: Final = Path("foqs-data")
EXIT_WAIT_S: Final = 1.0


class DemoRun:
    """One run with the options of `__main__.parse`."""

    def __init__(self, options: argparse.Namespace, show: Display) -> None:
        self._options = options
        self._show = show
        self._serve = bool(options.serve)
        self._folder = (options.dir or run_files.standard_library()).absolute()
        self._workers = options.workers or len(os.sched_getaffinity(0))
        self._run_name = f"demo-{secrets.token_hex(2)}"
        self._paths: list[str] = []
        self._ledger = RunLedger()

    def run(self) -> int:
        """Run it and return the exit code. Raises DemoFailed."""
        with contextlib.ExitStack() as stack, asyncio.Runner() as runner:
            data = self._options.data or (DATA if self._serve else _temporary_folder(stack, "foqs-demo-data-"))
            data = data.absolute()
            planted_files = run_files.PlantedFiles(_temporary_folder(stack, "foqs-demo-planted-"))
            try:
                return runner.run(self._run_async(data, planted_files))
            except asyncio.CancelledError:
                self._show.line("Interrupted; the host and the workers are stopped.")
                return INTERRUPTED

    async def _run_async(self, data: Path, planted_files: run_files.PlantedFiles) -> int:
        _handle_signals()
        self._paths = await asyncio.to_thread(run_files.find_files, self._folder, self._options.limit, data)
        if not self._paths:
            raise DemoFailed(f"There is no file below {self._folder}; name another folder.")
        async with demo_host.running_host(data, *self._ports()) as server, Client(server.url) as client:
            try:
                await self._show_introduction(client, server, data, len(planted_files.paths))
                await self._run_clients(client, server, planted_files)
                left = await proof.read_contents(client, f"{self._run_name}/")
            except (FoqsError, ExceptionGroup) as error:
                raise await self._explain_failure(error, server) from None
            proven = self._report(left)
            if self._serve:
                await self._keep_serving(server, left)
        return 0 if proven else 1

    def _ports(self) -> tuple[int, int]:
        """Return the ports for calls and for HTTP; 0 is any free port."""
        port, http_port = self._options.port, self._options.http_port
        usual = (PORT, HTTP_PORT) if self._serve and port is None else (0, 0)
        return usual[0] if port is None else port, usual[1] if http_port is None else http_port

    async def _show_introduction(self, client: Client, server: DemoHost, data: Path, planted: int) -> None:
        kept = self._serve or self._options.data
        fate = "kept; delete it to start empty" if kept else "removed at the end"
        facts = [
            ("host", f"{server.url}  and  {server.http_url}/ (livez, readyz, metrics)"),
            ("data", f"{data}: four SQLite shards, {fate}"),
        ]
        before = proof.describe_earlier_items(await proof.counted_topics(client))
        if before:
            facts.append(("before", f"{before} of earlier runs, left as they are"))
        facts += [
            (
                "files",
                f"{len(self._paths):,} below {self._folder}, and {planted} planted ones that cannot be processed",
            ),
            ("topics", f"{self._run_name}/TYPE by type of file; priority by size, small first"),
            ("work", f"compress and checksum, in {self._workers} worker processes"),
        ]
        self._show.title("FOQS at work: one item for each file")
        self._show.named_values(facts)
        self._show.line()

    async def _run_clients(self, client: Client, server: DemoHost, planted_files: run_files.PlantedFiles) -> None:
        """Run producer and consumer until every item is settled. Raises an ExceptionGroup."""
        topics = run_files.topics_by_path([*planted_files.paths, *self._paths], self._run_name)
        producer = DemoProducer(client, self._ledger, topics)
        with file_work.worker_pool(self._workers) as pool:
            consumer = DemoConsumer(client, self._ledger, f"{self._run_name}/", pool, self._workers)
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(server.fail_on_exit())
                showing = group.create_task(
                    self._show.show_progress(self._ledger, lambda: len(topics) - len(self._ledger.skipped))
                )
                group.create_task(producer.run(planted_files))
                await consumer.run()
                watching.cancel()
                showing.cancel()

    async def _explain_failure(self, error: Exception, server: DemoHost) -> Exception:
        """Return the error of a failed run: if the host died, that explains every failed call."""
        leaves = list(_leaf_errors(error))
        if any(isinstance(leaf, FoqsError) for leaf in leaves):
            try:
                async with asyncio.timeout(EXIT_WAIT_S):
                    await server.fail_on_exit()
            except DemoFailed as death:
                leaves.append(death)
            except TimeoutError:
                pass
        done = f" {self._ledger.settled_count:,} of {counted(len(self._paths), 'file was', 'files were')} done."
        for leaf in sorted(leaves, key=lambda leaf: not isinstance(leaf, DemoFailed)):
            match leaf:
                case DemoFailed():
                    return DemoFailed(f"{leaf}{done}")
                case FoqsError():
                    return DemoFailed(f"A call failed and the run cannot continue: {leaf}.{done}")
                case BrokenProcessPool():
                    return DemoFailed(f"A worker process ended unexpectedly, perhaps out of memory.{done}")
        return error

    # ------------------------------------------------------------------ report

    def _report(self, left: proof.HostContents) -> bool:
        """Show the results, and return whether the run is proven."""
        ledger, show = self._ledger, self._show
        settled = [entry for path, entry in ledger.entries.items() if path in ledger.acks]
        size = sum(entry.size for entry in settled)
        enqueued_s = (ledger.complete_at or ledger.settled_at) - ledger.started_at
        busy = ledger.work_s / (ledger.elapsed_s * self._workers)
        show.line()
        show.topics(ledger, left)
        show.line()
        show.latencies(ledger)
        show.title(
            f"{counted(ledger.settled_count, 'item')} in {ledger.elapsed_s:.1f} s: "
            f"{ledger.settled_count / ledger.elapsed_s:,.0f} items/s, {format_bytes(size / ledger.elapsed_s)}/s"
        )
        show.line(
            f"  {format_bytes(size)} compressed to {format_bytes(ledger.compressed_bytes)}; workers busy {busy:.0%} of the time"
        )
        show.line(
            f"  enqueued within {enqueued_s:.1f} s, worked off after {ledger.elapsed_s:.1f} s; latency includes waiting"
        )
        show.line(
            f"  deliveries {ledger.deliveries:,}, retries {ledger.retries:,}, dead {len(left.dead):,}, "
            f"leases extended {ledger.extensions:,}, leases lost {ledger.stale_leases:,}"
        )
        if left.dead:
            show.title("Dead: nacked with a reason until no attempt was left")
            show.dead(ledger, left)
        if ledger.skipped:
            path, reason = next(iter(ledger.skipped.items()))
            show.title(
                f"{counted(len(ledger.skipped), 'file')} could not be read and made no item, such as {path} ({reason})"
            )
        show.title("Proof")
        checks = proof.check_run(ledger, left)
        show.checks(checks)
        proven = all(check.ok for check in checks)
        show.line()
        show.conclusion(proven)
        return proven

    async def _keep_serving(self, server: DemoHost, left: proof.HostContents) -> None:
        """Serve until interrupted. Raises DemoFailed if the host ends by itself."""
        foqs = _program_path()
        address = "" if server.port == PORT else f" --address {server.url}"
        commands = [
            f"{foqs} enqueue mail 'hello' --priority -5{address}",
            f"{foqs} dequeue mail --wait 5s{address}",
            f"{foqs} topic list --all{address}",
        ]
        dead = next((topic.topic for topic in left.topics if topic.dead), None)
        if dead is not None:
            commands.append(f"{foqs} peek {dead} --state dead -o json{address}")
        commands.append(f"curl -s {server.http_url}/metrics | grep ^foqs_")
        self._show.title("The queue keeps serving. Try, in another terminal:")
        for command in commands:
            self._show.line(f"  {command}")
        self._show.line()
        self._show.line(
            f"Or look at {server.console_url} in a browser: Dead shows the files that could not be processed."
        )
        self._show.line()
        self._show.line("Stop with Ctrl-C.")
        try:
            await server.fail_on_exit()
        except asyncio.CancelledError:
            self._show.line("Stopping the host.")


def _leaf_errors(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaf_errors(inner)
    else:
        yield error


def _handle_signals() -> None:
    """Cancel this task at the first signal. Later signals have no effect, as the end is bounded."""
    task = asyncio.current_task()
    assert task is not None
    waiting = [task]

    def interrupt() -> None:
        while waiting:
            waiting.pop().cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, interrupt)


def _temporary_folder(stack: contextlib.ExitStack, prefix: str) -> Path:
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix)))


def _program_path() -> str:
    """Return the shell command of `foqs` in this folder."""
    program = Path(sys.executable).with_name("foqs")
    if shutil.which("foqs") == str(program):
        return "foqs"
    inside = program.is_relative_to(Path.cwd())
    return shlex.quote(str(program.relative_to(Path.cwd()) if inside else program))
