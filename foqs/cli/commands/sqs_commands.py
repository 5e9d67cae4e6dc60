"""The commands for programs written for Amazon SQS.

Always true: a secret is shown only to a user who may read the token that it follows from.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import click

from foqs.cli.host_session import NOT_FOUND, USAGE, CommandFailed, configuration
from foqs.cli.output import write_data

_ACCESS_KEY: Final = re.compile(r"[!-+\--~]+", re.ASCII)
"""An access key that fits into the header of a signature: printable ASCII without commas and spaces."""


@click.group()
def sqs() -> None:
    """Programs written for Amazon SQS: their credentials."""


@sqs.command(
    epilog="\b\nExamples:\n  foqs sqs credentials mailer --config /etc/foqs/foqs.toml\n"
    "  foqs sqs credentials mailer --token-file ~/.foqs-token"
)
@click.argument("principal")
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    envvar="FOQS_CONFIG",
    help="A host's configuration, which names the principal's token file.",
)
@click.option("--token-file", envvar="FOQS_TOKEN_FILE", help="The principal's token file, in place of --config.")
def credentials(principal: str, file: Path | None, token_file: str | None) -> None:
    """Show the access key and the secret of PRINCIPAL, as environment variables of AWS' SDKs.

    The secret follows from the first token of the file. It changes when that token changes.
    """
    from foqs.access.keyring import signing_secret
    from foqs.access.secret_files import UnusableFile, read_tokens

    if not _ACCESS_KEY.fullmatch(principal):
        raise CommandFailed(
            "An access key is ASCII without spaces and commas; use a principal with such a name.", USAGE
        )
    try:
        token = read_tokens(token_file or _token_file_of(principal, file))[0]
    except UnusableFile as error:
        raise CommandFailed(str(error), USAGE) from None
    write_data(f"AWS_ACCESS_KEY_ID={principal}\nAWS_SECRET_ACCESS_KEY={signing_secret(token)}")


def _token_file_of(principal: str, file: Path | None) -> str:
    """Return the token file of a principal in a host's configuration. Raises CommandFailed."""
    if file is None:
        raise CommandFailed(
            "Name the principal's token file (--token-file) or a host's configuration (--config).", USAGE
        )
    options = configuration(file).auth.principals.get(principal)
    if options is None or not options.token_file:
        raise CommandFailed(f"{file}: there is no principal {principal!r} with a token file.", NOT_FOUND)
    return options.token_file
