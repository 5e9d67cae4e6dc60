"""The commands for the configuration: a host's file, and the catalog.

Always true: changes are shown before they are made.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from difflib import unified_diff
from itertools import count
from pathlib import Path
from typing import Any

import click

from foqs.cli.host_session import USAGE, CommandFailed, HostSession, configuration, host_call_options
from foqs.cli.output import confirm, print_message, show_document, write_data
from foqs_contract.plurals import counted


@click.group()
def config() -> None:
    """The configuration: a host's file, and the namespaces, grants and pauses of the catalog."""


@config.command(
    epilog="\b\nExamples:\n  foqs config check configs/foqs.toml\n  FOQS_SERVER__PORT=70000 foqs config check"
)
@click.argument("file", type=click.Path(path_type=Path), envvar="FOQS_CONFIG", required=False)
def check(file: Path | None) -> None:
    """Check whether FILE and the environment are a valid configuration.

    Without FILE, check the defaults and the environment. Exit code 2 if it is not valid.
    """
    found = configuration(file)
    where = file if file else "defaults and environment"
    kept = f"{counted(found.store.shards, 'shard')} in {found.store.url}"
    if found.cluster.zookeeper:
        kept = f"shards from the plan at {found.cluster.root} in ZooKeeper ({found.cluster.zookeeper})"
        kept += f", databases {', '.join(found.databases)}"
    write_data(
        f"{where}: valid; {kept}, calls on {found.server.host}:{found.server.port}, HTTP on {found.server.http_port}"
    )


@config.command(epilog="\b\nExample:\n  foqs config default > foqs.toml")
def default() -> None:
    """Print a configuration file with every option, its reason, unit, range and default."""
    from foqs.options.config import Config

    write_data(Config().to_toml(), nl=False)


@config.command(
    "upgrade", epilog="\b\nExamples:\n  foqs config upgrade foqs.toml\n  foqs config upgrade foqs.toml --write"
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--write", is_flag=True, help="Rewrite FILE. The old text is kept beside it, in FILE.bak.")
def upgrade_(file: Path, write: bool) -> None:
    """Rename the old options in FILE to their present names, with comments and layout kept.

    Without --write, show the difference and change nothing. Unknown options are reported and left.
    """
    from foqs.options.upgrade import UpgradeRefused, upgrade

    # A link stays a link: its target is rewritten.
    path = file.resolve()
    try:
        old = path.read_bytes().decode()
        found = upgrade(old)
    except OSError as error:
        raise CommandFailed(
            f"{file}: it cannot be read: {error.strerror}; name a file that this user may read", USAGE
        ) from None
    except UnicodeDecodeError:
        raise CommandFailed(f"{file}: it is not UTF-8 text; save it as UTF-8", USAGE) from None
    except UpgradeRefused as error:
        raise CommandFailed(f"{file}: {error}", USAGE) from None
    for line in found.unknown:
        print_message(f"{file}: {line}")
    if found.text == old:
        print_message(f"{file}: nothing to rename.")
        return
    if not write:
        lines = unified_diff(old.splitlines(True), found.text.splitlines(True), str(file), f"{file} (upgraded)")
        for line in lines:
            write_data(line if line.endswith("\n") else f"{line}\n", nl=False)
        print_message(f"Nothing was written. To write it: foqs config upgrade {file} --write")
        return
    try:
        backup = _replace_text(path, found.text)
    except OSError as error:
        raise CommandFailed(f"{file}: it cannot be rewritten: {error.strerror}; it is unchanged") from None
    print_message(f"{file}: written. The old text is in {backup}. Check it with: foqs config check {file}")


def _replace_text(path: Path, text: str) -> Path:
    """Write the file atomically, with its mode and owner, and return where the old one is kept."""
    backup = next(
        name for n in count(1) if not (name := path.with_name(f"{path.name}.bak{'' if n == 1 else n}")).exists()
    )
    state = path.stat()
    descriptor, made = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    fresh = Path(made)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(text.encode())
            os.fchmod(stream.fileno(), stat.S_IMODE(state.st_mode))
            if (state.st_uid, state.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(stream.fileno(), state.st_uid, state.st_gid)
            stream.flush()
            os.fsync(stream.fileno())
        os.link(path, backup)
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return backup


@config.command("export", epilog="\b\nExample:\n  foqs config export > foqs-config.json")
@host_call_options
def export(session: HostSession) -> None:
    """Print the namespaces with settings, grants and paused topics as JSON, for config import."""
    show_document(session.run(lambda client: client.export_config()))


@config.command(
    "import", epilog="\b\nExamples:\n  foqs config import foqs-config.json\n  foqs config import - --yes < saved"
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--yes", is_flag=True, help="Do not ask.")
@host_call_options
def import_(session: HostSession, file: str, yes: bool) -> None:
    """Replace all namespaces, grants and pauses with those of FILE (- for standard input). Others are deleted.

    Refused if this would delete a namespace that holds items.
    """
    if not yes and file == "-":
        raise click.UsageError("FILE - leaves no input for a confirmation; add --yes.")
    try:
        with click.open_file(file, "rb") as stream:
            text = stream.read().decode()
    except UnicodeDecodeError:
        raise CommandFailed(f"{file}: it is not UTF-8 text; name a file written by foqs config export", USAGE) from None
    if not yes:
        fresh, old = _namespaces_in(text), _namespaces_in(session.run(lambda client: client.export_config()))
        added, deleted = fresh.keys() - old.keys(), old.keys() - fresh.keys()
        changed = [name for name in fresh.keys() & old.keys() if fresh[name] != old[name]]
        print_message(f"Namespaces: {len(added)} added, {len(changed)} changed, {len(deleted)} deleted.")
        for word, names in (("added", added), ("changed", changed), ("deleted", deleted)):
            for name in sorted(names):
                print_message(f"  {word}: {name}")
        if not (added or changed or deleted):
            print_message("Nothing to do.")
            return
        confirm("Replace the configuration?")
    session.run(lambda client: client.import_config(text))
    print_message("Imported.")


def _namespaces_in(text: str) -> dict[str, Any]:
    """Return the namespaces of a document; nothing if it is malformed, as the host reports that."""
    try:
        found = json.loads(text)["namespaces"]
    except (ValueError, KeyError, TypeError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}
