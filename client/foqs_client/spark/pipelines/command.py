"""The command line of the pipelines.

Holds `main`. Always true: a failure is one sentence on standard error and exit code 1;
wrong arguments give exit code 2. Results are on standard output, as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from foqs_client.spark.environment import problem
from foqs_client.spark.pipelines.connection import TIMEOUT_MS, Connection, PipelineError
from foqs_client.spark.pipelines.error_sentence import error_sentence
from foqs_client.spark.pipelines.terminal import say
from foqs_contract.plurals import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROGRAM: Final = "foqs spark"
_EXAMPLES: Final = """Examples:
  foqs spark load /data/orders --topic orders --map "payload=to_json(struct(*))"
  foqs spark report /data/report
  foqs spark redrive --where "dead_reason LIKE 'attempts%'" --dry-run
  foqs spark rewrite --where "priority > 5" --move slow
  foqs spark export /data/export --topics orders
  foqs spark measures /data/records /data/measures
"""
_DEFAULT_ADDRESS: Final = "foqs://127.0.0.1:7411"
_STATES: Final = ("deferred", "ready", "leased", "dead")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a pipeline and return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        return _RUN[options.pipeline](_session(options), options)
    except PipelineError as error:
        say(f"Error: {error}")
        return 1
    except KeyboardInterrupt:
        say("Interrupted.")
        return 1
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark.", "py4j.")):
            raise
        say(f"Error: {error_sentence(error)}")
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Pipelines of Spark over a queue.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    pipelines = parser.add_subparsers(dest="pipeline", required=True, metavar="PIPELINE")
    load = _pipeline(pipelines, "load", "enqueue the rows of files")
    load.add_argument("paths", nargs="+", metavar="PATH", help="files or folders")
    load.add_argument("--format", choices=("parquet", "json", "csv"), default="parquet", help="default: parquet")
    load.add_argument(
        "--map",
        action=_Pairs,
        metavar="COLUMN=EXPRESSION",
        help="a column of the items, as SQL over the files' columns",
    )
    load.add_argument("--topic", help="the topic of rows without one")
    load.add_argument(
        "--set", action=_Pairs, metavar="OPTION=VALUE", help="an option of the sink, such as on_error=skip"
    )
    load.add_argument("--schema", help="the columns of JSON or CSV files, as DDL; default: read from them")
    load.add_argument("--run", help="the name of the load; default: made of its arguments and files")
    report = _pipeline(pipelines, "report", "write the backlog as tables and an HTML page")
    report.add_argument("folder", metavar="FOLDER", help="a new folder for the report")
    report.add_argument(
        "--namespaces", type=_names, help="namespaces, separated by commas; default: that of --namespace"
    )
    for name, text in (("redrive", "make dead items ready again"), ("rewrite", "change, cancel or move items")):
        change = _pipeline(pipelines, name, f"{text}, chosen by an SQL predicate")
        change.add_argument("--where", required=True, help="an SQL predicate over the columns of the source")
        change.add_argument("--topics", type=_names, help="only these topics, separated by commas")
        change.add_argument("--payload", action="store_true", help="the predicate needs the column payload")
        change.add_argument("--yes", action="store_true", help="do not ask")
        if name == "rewrite":
            change.add_argument("--states", type=_states, default=("ready", "dead"), help="default: ready,dead")
            action = change.add_mutually_exclusive_group(required=True)
            action.add_argument("--redrive", action="store_true", help="make dead items ready again")
            action.add_argument("--cancel", action="store_true", help="delete the items")
            action.add_argument("--priority", type=int, help="give the items this priority")
            action.add_argument("--move", metavar="TOPIC", help="move the items to this topic")
    export = _pipeline(pipelines, "export", "copy topics to Parquet")
    export.add_argument("folder", metavar="FOLDER", help="a new folder for the export")
    restore = _pipeline(pipelines, "import", "restore an export")
    restore.add_argument("folder", metavar="FOLDER", help="the folder of an export")
    restore.add_argument("--yes", action="store_true", help="do not ask")
    for each in (export, restore):
        each.add_argument("--topics", type=_names, help="only these topics, separated by commas")
    measures = _pipeline(pipelines, "measures", "measure a run by the records of its clients", calls_hosts=False)
    measures.add_argument("paths", nargs="+", metavar="PATH", help="files or folders of records")
    measures.add_argument("folder", metavar="FOLDER", help="a new folder for the measures")
    measures.add_argument("--format", choices=("json", "parquet"), default="json", help="default: json, which is lines")
    return parser


def _pipeline(pipelines: Any, name: str, text: str, *, calls_hosts: bool = True) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = pipelines.add_parser(name, help=text, description=f"{text.capitalize()}.")
    if calls_hosts:
        _add_connection(parser)
    parser.add_argument("--master", help="Spark's master; default: local[*], or that of spark-submit")
    parser.add_argument("--dry-run", action="store_true", help="count and show examples; change and write nothing")
    return parser


def _add_connection(parser: argparse.ArgumentParser) -> None:
    environ = os.environ.get
    parser.add_argument("--address", default=environ("FOQS_ADDRESS", _DEFAULT_ADDRESS), help="the hosts (FOQS_ADDRESS)")
    parser.add_argument("-n", "--namespace", default=environ("FOQS_NAMESPACE", "default"), help="(FOQS_NAMESPACE)")
    for flag in ("--token-file", "--ca-file", "--cert-file", "--key-file"):
        parser.add_argument(flag, metavar="FILE", help=f"as of other commands ({_variable(flag)})")
    parser.add_argument("--timeout-ms", type=int, default=TIMEOUT_MS, help="the time of a call with its retries")


def _variable(flag: str) -> str:
    return f"FOQS_{flag.removeprefix('--').replace('-', '_').upper()}"


class _Pairs(argparse.Action):
    """Collects NAME=VALUE arguments in a dictionary."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        name, sign, value = str(values).partition("=")
        if not sign or not name:
            parser.error(f"{option} {values}: write NAME=VALUE")
        setattr(namespace, self.dest, {**(getattr(namespace, self.dest) or {}), name: value})


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _states(text: str) -> tuple[str, ...]:
    states = _names(text)
    if not states or not set(states) <= set(_STATES):
        raise argparse.ArgumentTypeError(f"{text!r} must be some of {','.join(_STATES)}")
    return states


def _session(options: argparse.Namespace) -> SparkSession:
    """Return the running session, or start one. Raises PipelineError if Spark is missing."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise PipelineError("Spark is missing; pip install 'foqs[spark]'") from None
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    trouble = problem(os.environ)
    if trouble:
        raise PipelineError(trouble)
    builder = SparkSession.builder.appName(f"foqs {options.pipeline}")
    if options.master or "SPARK_ENV_LOADED" not in os.environ:
        # Without spark-submit there is no other master, and Spark's log would hide the pipeline's own lines.
        builder = builder.master(options.master or "local[*]").config("spark.log.level", "ERROR")
        builder = builder.config("spark.ui.showConsoleProgress", "false")
    try:
        return builder.getOrCreate()
    except Exception as error:
        raise PipelineError(f"Spark does not start: {str(error).splitlines()[0]}") from None


def _connection(options: argparse.Namespace) -> Connection:
    files = {
        name: getattr(options, name) or os.environ.get(f"FOQS_{name.upper()}")
        for name in ("token_file", "ca_file", "cert_file", "key_file")
    }
    return Connection(options.address, options.namespace, timeout_ms=options.timeout_ms, **files)


def _show(found: Any) -> None:
    print(json.dumps(found, default=str), flush=True)  # noqa: T201


def _show_outcomes(outcomes: Mapping[tuple[str, str], int], good: Sequence[str]) -> int:
    """Show the outcomes and return the exit code: 1 if an item was refused."""
    counts: dict[str, int] = {}
    for (outcome, message), items in sorted(outcomes.items()):
        counts[outcome] = counts.get(outcome, 0) + items
        if outcome not in good:
            say(f"{counted(items, 'item')}: {outcome}: {message}")
    _show(counts)
    return 0 if set(counts) <= set(good) else 1


def _run_load(spark: SparkSession, options: argparse.Namespace) -> int:
    from foqs_client.spark.pipelines.load import Load, load_files

    more = dict(options.set or {})
    if options.topic is not None:
        more["topic"] = options.topic
    load = Load(options.paths, options.format, options.map or {}, more, options.run, options.schema)
    _show({"rows": load_files(spark, _connection(options), load, dry_run=options.dry_run)})
    return 0


def _run_report(spark: SparkSession, options: argparse.Namespace) -> int:
    from foqs_client.spark.pipelines.report import write_report

    connection = _connection(options)
    connections = [replace(connection, namespace=name) for name in options.namespaces or (options.namespace,)]
    tables = write_report(spark, connections, options.folder, dry_run=options.dry_run)
    _show({"items": sum(row["items"] for row in tables["backlog"])})
    return 0


def _run_change(spark: SparkSession, options: argparse.Namespace) -> int:
    from foqs_client.spark.pipelines.changes import Selection, change_items
    from foqs_client.spark.pipelines.item_actions import ItemAction

    if options.pipeline == "redrive" or options.redrive:
        action, states = ItemAction("redrive"), ("dead",)
    elif options.cancel:
        action, states = ItemAction("cancel"), options.states
    elif options.move is not None:
        action, states = ItemAction("move", options.move), options.states
    else:
        action, states = ItemAction("priority", options.priority), options.states
    selection = Selection(options.where, options.topics, states, options.payload)
    outcomes = change_items(spark, _connection(options), selection, action, dry_run=options.dry_run, yes=options.yes)
    return _show_outcomes(outcomes, ("done", "repeated", "gone"))


def _run_export(spark: SparkSession, options: argparse.Namespace) -> int:
    from foqs_client.spark.pipelines.transfer import export_items

    counts = export_items(spark, _connection(options), options.folder, options.topics, dry_run=options.dry_run)
    _show(counts)
    return 0


def _run_import(spark: SparkSession, options: argparse.Namespace) -> int:
    from foqs_client.spark.pipelines.transfer import import_items

    outcomes = import_items(
        spark, _connection(options), options.folder, options.topics, dry_run=options.dry_run, yes=options.yes
    )
    return _show_outcomes(outcomes, ("done", "repeated", "expired"))


def _run_measures(spark: SparkSession, options: argparse.Namespace) -> int:
    from foqs_client.spark.pipelines.measures import write_measures
    from foqs_client.spark.pipelines.measures_page import totals

    tables = write_measures(spark, options.paths, options.format, options.folder, dry_run=options.dry_run)
    _show(totals(tables["topics"]))
    return 0


_RUN: Final[Mapping[str, Callable[[Any, argparse.Namespace], int]]] = {
    "load": _run_load,
    "report": _run_report,
    "redrive": _run_change,
    "rewrite": _run_change,
    "export": _run_export,
    "import": _run_import,
    "measures": _run_measures,
}
