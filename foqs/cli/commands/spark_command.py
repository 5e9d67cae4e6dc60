"""The command `foqs spark`: passes its arguments to the pipelines, which need Spark and not this package."""

from __future__ import annotations

import click


@click.command(
    "spark",
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="PIPELINE [ARGUMENT]...")
@click.pass_context
def spark(context: click.Context, arguments: tuple[str, ...]) -> None:
    """Run a pipeline of Spark: load, report, redrive, rewrite, export, import or measures.

    `foqs spark --help` has examples, `foqs spark PIPELINE --help` the arguments. Needs Java and foqs[spark].
    """
    from foqs_client.spark.pipelines.command import main

    context.exit(main(arguments))
