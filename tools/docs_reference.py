"""Makes the reference pages of the site from the product itself.

Holds one function for each page, and PAGES with all of them. This is the only
file of the site that imports the product.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final, get_args, get_origin

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "client")]

from foqs.cli import root  # noqa: E402 - the project need not be installed
from foqs.options.config import Config  # noqa: E402
from tools import docs_thrift  # noqa: E402

CONTRACT: Final = ROOT / "thrift" / "foqs.thrift"
CLIENT: Final = "foqs_client"
CONSUMER: Final = "foqs_client.consumer"


def calls() -> str:
    """Return the page of the Thrift calls."""
    source = CONTRACT.relative_to(ROOT).as_posix()
    contract = docs_thrift.read(CONTRACT.read_text())
    return f"# Thrift calls\n\nThis is [{source}](../../{source}).\n\n{docs_thrift.markdown(contract)}"


def client() -> str:
    """Return the page of the Python client's public names."""
    return _python("Python client", CLIENT)


def consumer() -> str:
    """Return the page of the consumer loop's public names."""
    return _python("Python consumer", CONSUMER)


def cli() -> str:
    """Return the page of the command line: the help of every command."""
    lines = ["# Command line", "", "Each part is what `--help` prints.", ""]
    for path, text in commands():
        lines += [f"## {path}", "", "```text", text, "```", ""]
    return "\n".join(lines)


def options() -> str:
    """Return the page of the host's options."""
    lines = [
        "# Options",
        "",
        "Set an option in the file that `foqs host --config FILE` reads, as `option = value` below `[section]`, or in the "
        "environment as `FOQS_SECTION__OPTION`: `FOQS_SERVER__PORT=7411`. The environment wins over the file; the command line "
        "wins over both. [configs/foqs.toml](../../configs/foqs.toml) is a file with all defaults; `foqs config check FILE` "
        "checks a file.",
        "",
    ]
    for section, why, fields in sections():
        lines += [f"## [{section}] {{ #{section} }}", "", _text(why), ""]
        for name, info in fields.items():
            lines += [f"### {name} {{ #{section}.{name} }}", "", _text(info.description or ""), ""]
            lines += [f"{_range(info)}; default `{_value(info.default)}`", ""]
    return "\n".join(lines)


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "calls.md": calls,
    "python-client.md": client,
    "python-consumer.md": consumer,
    "command-line.md": cli,
    "options.md": options,
}
"""The generators of pages by the name of the page."""


def commands() -> Iterator[tuple[str, str]]:
    """Yield each command's full name and help."""
    yield from _commands("foqs", root, None)


def _commands(path: str, command: click.Command, parent: click.Context | None) -> Iterator[tuple[str, str]]:
    context = click.Context(command, parent, path.rpartition(" ")[2], terminal_width=80, **command.context_settings)
    yield path, click.unstyle(command.get_help(context))
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from _commands(f"{path} {name}", inner, context)


def sections() -> Iterator[tuple[str, str, dict[str, FieldInfo]]]:
    """Yield each section of the configuration: its name, its description and its options."""
    for name, info in Config.model_fields.items():
        yield from _sections(name, info)


def _sections(name: str, info: FieldInfo) -> Iterator[tuple[str, str, dict[str, FieldInfo]]]:
    model: Any = info.annotation
    if get_origin(model) is dict:
        name, model = f"{name}.NAME", get_args(model)[1]
    if isinstance(model, type) and issubclass(model, BaseModel):
        yield name, model.__doc__ or info.description or "", model.model_fields
        for inner, field in model.model_fields.items():
            yield from _sections(f"{name}.{inner}", field)


def _python(title: str, module: str) -> str:
    """Return the page of a module: its docstring, then its public names by mkdocstrings, errors last."""
    found = import_module(module)
    first, _, example = (found.__doc__ or "").partition("\n\n")
    lines = [f"# {title}", "", first, "", *(["```python", example.strip(), "```", ""] if example else [])]
    # The clients first, the errors last.
    for name in sorted(found.__all__, key=lambda name: (_is_error(found, name), not name.endswith("Client"))):
        lines += [f"::: {module}.{name}", ""]
        if _is_error(found, name):
            lines[-1:] = ["    options:", "      inherited_members: false", ""]
        elif members := _inherited(getattr(found, name)):
            lines[-1:] = ["    options:", f"      members: {json.dumps(members)}", ""]
    return "\n".join(lines)


def _is_error(module: object, name: str) -> bool:
    value = getattr(module, name)
    return isinstance(value, type) and issubclass(value, Exception)


def _inherited(value: object) -> list[str]:
    """Return the methods and properties of a class with inherited ones, its own first; empty for other classes."""
    bases = value.__mro__[:-1] if isinstance(value, type) else ()
    members = [member for base in bases for member in vars(base).items()]
    names = [name for name, it in members if (callable(it) or isinstance(it, property)) and name[0] != "_"]
    return list(dict.fromkeys(names)) if len(bases) > 1 else []


def _range(info: FieldInfo) -> str:
    """Return the unit of an option and the bounds of its value."""
    extra = info.json_schema_extra
    unit = str(extra.get("unit", "")) if isinstance(extra, dict) else ""
    low, high = (
        next((getattr(mark, name) for mark in info.metadata if hasattr(mark, name)), None) for name in ("ge", "le")
    )
    return unit if low is None or high is None else f"{unit}, {_value(low)} to {_value(high)}"


def _value(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:_}" if value >= 10_000 else str(value)
    return json.dumps(value, ensure_ascii=False)


def _text(text: str) -> str:
    return docs_thrift.escaped(" ".join(text.split()))
