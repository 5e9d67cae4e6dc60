"""The names in the documents, and whether what they name exists.

A *span* is text between backquotes, or a command line in a block of code. Its shape says what
it names: `foqs.rpc.server` a module, `rpc.frame_bytes_max` an option, `foqs_ready_items` a
metric, `foqs topic list` a command, `listItems` a call, `foqs/host.py` a file, `RoutingTable`
a word of the program. A span of another shape names nothing that is checked. In a table
whose first column is headed *old*, that column is left out. Always true: each shape is
checked against its one source, not against other documents. Knows nothing of what the
documents say, and of no exception.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import click

from foqs.cli import RENAMED_COMMANDS, root
from foqs.options.config import Config
from foqs.options.renames import DEPRECATED, RENAMED
from foqs.telemetry.metric_table import METRICS, RELAY_METRICS
from foqs_client.outbox.outbox_sql import table_names
from foqs_contract.call_table import CALLS

ROOT: Final = Path(__file__).parents[2]
SOURCE_ROOTS: Final = {"foqs_client": "client", "foqs_contract": "client", "pyspark_foqs": "client"}
"""Where packages are that are not at the top."""
_PACKAGES: Final = ("foqs", "shardmgr", "perf", "tests", "tools", *SOURCE_ROOTS)
_PROGRAM: Final = ("foqs", "shardmgr", "perf", "tests", "tools", "client", "thrift", "configs")
_FOLDERS: Final = (*_PROGRAM, "docs")
_FILES_AT_THE_TOP: Final = ("Makefile", "pyproject.toml", "constraints.txt", "hatch_build.py", "mkdocs.yml")
_TEXT_SUFFIXES: Final = frozenset(
    {"", ".py", ".thrift", ".toml", ".yml", ".yaml", ".html", ".js", ".css", ".sh", ".cnf", ".json", ".service"}
)
_WRITTEN_FOLDERS: Final = frozenset({"perf/results/"})
"""What programs write."""
_BUILT_PAGES: Final = frozenset({"reference/client.md"})
"""What `make docs` writes."""
_ENDS_COMMAND: Final = re.compile(r"^([|&;<>]+|2>.*)$")


@dataclass(slots=True, frozen=True)
class Span:
    """A span of a document, as `file:line`, and the last full name of a module before it in its line."""

    place: str
    text: str
    module: str | None = None


def spans_of(name: str, text: str) -> Iterator[Span]:
    """Return the spans of a document in their order."""
    in_block, command, former_names = False, "", False
    for number, line in enumerate(text.splitlines(), 1):
        place = f"{name}:{number}"
        if line.lstrip().startswith("```"):
            in_block, command = not in_block, ""
        elif in_block:
            command += line.strip().removeprefix("$ ")
            if command.endswith("\\"):
                command = command[:-1]
                continue
            if _COMMAND.match(command):
                yield Span(place, command)
            command = ""
        else:
            former_names = line.startswith("| old |") or (former_names and line.startswith("|"))
            module: str | None = None
            for content in re.findall(r"`([^`]+)`", line.split("|", 2)[2] if former_names else line):
                yield Span(place, content, module)
                if _MODULE.match(content):
                    module = content


def missing_links(path: Path, text: str) -> list[str]:
    """Return the links of a document to files that do not exist."""
    targets = re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)", re.sub(r"`[^`\n]*`", "", text))
    return [target for target in targets if not (path.parent / target).exists() and target not in _BUILT_PAGES]


def problem_of(span: Span) -> str | None:
    """Return what is wrong with a span; None if it names something that exists, or nothing that is checked."""
    for shape, check in _CHECKS:
        if match := shape.match(span.text):
            problem = check(match, span)
            return None if problem is None else f"{span.place}: `{span.text}`: {problem}"
    return None


# ------------------------------------------------------------------------ sources


def _texts(*folders: str) -> Iterator[str]:
    """Return the texts of the files in folders, without the test that plants wrong names."""
    for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*")):
        if path.suffix in _TEXT_SUFFIXES and path.is_file() and path.name != "test_document_names.py":
            yield path.read_text(encoding="utf-8", errors="replace")


@cache
def words() -> frozenset[str]:
    """Return the words of the program, its tests and its tools."""
    texts = [*_texts(*_PROGRAM), *((ROOT / name).read_text(encoding="utf-8") for name in _FILES_AT_THE_TOP)]
    return frozenset(word for text in texts for word in re.findall(r"\w+", text))


@cache
def words_of_others() -> frozenset[str]:
    """Return the words of the parts that speak the language of SQS and of Spark."""
    texts = _texts("foqs/sqs", "client/foqs_client/spark", "tests/spark", "configs")
    return frozenset(word for text in texts for word in re.findall(r"\w+", text))


@cache
def quoted() -> frozenset[str]:
    """Return the strings of the program that could be names: flags, files and the names of loggers and attributes."""
    name = r"[\"'/ ](--?[a-z][\w-]*)(?=[\"'/ =])|[\"'/}]([\w-]+(?:\.[\w-]+)+)(?=[\"'{])"
    return frozenset("".join(found) for text in _texts(*_PROGRAM) for found in re.findall(name, text))


@cache
def options() -> frozenset[str]:
    """Return the names of the options, and of the sections in brackets."""
    found = {"[databases.NAME]"}
    for section, model_field in Config.model_fields.items():
        found.add(f"[{section}]")
        fields = getattr(model_field.annotation, "model_fields", {})
        found.update(f"{section}.{name}" for name in fields)
    return frozenset(found)


@cache
def former_options() -> frozenset[str]:
    """Return the old names of options and sections, which the program refuses or converts by name."""
    return frozenset(RENAMED) | {entry.old for entry in DEPRECATED}


@cache
def metrics() -> frozenset[str]:
    """Return the names of the metrics as queries use them."""
    found: set[str] = set()
    for metric in METRICS + RELAY_METRICS:
        suffixes = ("", "_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        found.update(metric.exposed_name + suffix for suffix in suffixes)
    return frozenset(found)


@cache
def tables() -> frozenset[str]:
    """Return the names of the tables of a database that belong to no shard, of those of an outbox, and of Django's results."""
    texts = [*_texts("foqs/store"), *_texts("client/foqs_client/django/migrations")]
    found = (word for text in texts for word in re.findall(r"foqs_\w+", text))
    return frozenset([*found, *table_names()])


@cache
def basenames() -> frozenset[str]:
    """Return the names of all files of the repository's folders."""
    return frozenset(
        path.name for folder in _FOLDERS for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts
    ) | {path.name for path in ROOT.iterdir()}


@cache
def make_targets() -> frozenset[str]:
    """Return the targets of the Makefile."""
    return frozenset(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def _flags(command: click.Command) -> set[str]:
    return {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}


# ------------------------------------------------------------------------- checks


def _check_command(match: re.Match[str], span: Span) -> str | None:
    """Walk down the commands; the other words are arguments, and flags belong to a command that was named."""
    command: click.Command = root
    flags = _flags(root)
    try:
        words_of_line = shlex.split(match[1])
    except ValueError:
        words_of_line = match[1].split()
    for word in words_of_line:
        if _ENDS_COMMAND.match(word):
            break
        if "|" in word and isinstance(command, click.Group):  # a choice of commands
            missing = [each for each in word.split("|") if each not in command.commands]
            return f"`{command.name}` has no command {missing[0]}" if missing else None
        if word.startswith("-") and len(word) > 1:
            known_flags = quoted() if command.context_settings.get("ignore_unknown_options") else flags
            if word.split("=")[0] not in known_flags and not word[1:].isdigit():
                return f"`{command.name}` has no flag {word}"
        elif isinstance(command, click.Group) and word not in {"...", "…"}:
            known = command.commands.get(RENAMED_COMMANDS.get(word, word) if _tells_of_old(span) else word)
            if known is None and not command.invoke_without_command:
                return f"`{command.name}` has no command {word}"
            if known is not None:
                command = known
                flags |= _flags(command)
    return None


def _check_make(match: re.Match[str], span: Span) -> str | None:
    missing = [word for word in shlex.split(match[1]) if "=" not in word and word not in make_targets()]
    return f"the Makefile has no target {missing[0]}" if missing else None


def _check_flag(match: re.Match[str], span: Span) -> str | None:
    return None if match[1] in quoted() else "no command has this flag"


def _check_path(match: re.Match[str], span: Span) -> str | None:
    path, _, test = match[1].partition("::")
    under = "client/" if path.split("/")[0] in SOURCE_ROOTS else ""
    found = list(ROOT.glob(under + re.sub(r"<\w+>|\b[A-Z]\b", "*", path).rstrip("/")))
    if not found and path not in _WRITTEN_FOLDERS:
        return "there is no such file"
    if test and f"def {test}" not in found[0].read_text(encoding="utf-8"):
        return "the file has no such test"
    return None


def _check_basename(match: re.Match[str], span: Span) -> str | None:
    pattern = re.compile(re.escape(match[0]).replace(r"\*", ".*"))
    known = match[0] in quoted() or any(map(pattern.fullmatch, basenames()))
    return None if known else "no file has this name, and no program writes one"


def _check_metric(match: re.Match[str], span: Span) -> str | None:
    name = match[1]
    if name in _PACKAGES or name in metrics() or name in tables():
        return None
    return "there is no such metric, and no such table"


def _check_section(match: re.Match[str], span: Span) -> str | None:
    known = match[0] in options() or (_tells_of_old(span) and match[0] in former_options())
    return None if known else "the configuration has no such section"


def _check_option(match: re.Match[str], span: Span) -> str | None:
    section, name = match[1].lower(), match[2].lower()
    option = f"{section}.{name}"
    if name.endswith("*"):
        known = any(each.startswith(option[:-1]) for each in options())
    else:
        known = option in options() or (_tells_of_old(span) and option in former_options())
    return None if known else "there is no such option"


def _tells_of_old(span: Span) -> bool:
    """Whether the page names what an earlier version had."""
    return span.place.startswith(("CHANGELOG.md", "docs/upgrading.md", "docs/compatibility.md"))


def _check_module(match: re.Match[str], span: Span) -> str | None:
    if _has_module(match[1]) or match[1] in quoted():
        return None
    return "there is no such module, and no such name in one"


def _check_near_module(match: re.Match[str], span: Span) -> str | None:
    if span.module is None or _has_module(f"{span.module.rpartition('.')[0]}{match[0]}"):
        return None
    return f"there is no such module beside {span.module}"


def _has_module(name: str) -> bool:
    """Return whether a module has this name, or holds what the rest of the name says."""
    first, *rest = name.split(".")
    place = ROOT / SOURCE_ROOTS.get(first, "") / first
    while rest and (place / rest[0]).is_dir():
        place /= rest.pop(0)
    if rest and (place / f"{rest[0]}.py").is_file():
        place = place / f"{rest.pop(0)}.py"
    else:
        place /= "__init__.py"
    if not rest:
        return True
    return place.is_file() and set(rest) <= set(re.findall(r"\w+", place.read_text(encoding="utf-8")))


def _check_call(match: re.Match[str], span: Span) -> str | None:
    return None if match[1] in CALLS or match[1] in words_of_others() else "the contract has no such call"


def _check_words(match: re.Match[str], span: Span) -> str | None:
    missing = [word for word in match[1].split(".") if word not in words()]
    return f"the program does not have the word {missing[0]}" if missing else None


_COMMAND: Final = re.compile(r"(?:[\w./-]*/)?foqs ([a-z-].*)")
_MODULE: Final = re.compile(rf"((?:{'|'.join(_PACKAGES)})(?:\.\w+)+)$")
_SECTIONS: Final = "|".join(Config.model_fields)

_CHECKS: Final[tuple[tuple[re.Pattern[str], Callable[[re.Match[str], Span], str | None]], ...]] = (
    (_COMMAND, _check_command),
    (re.compile(r"make ([a-z].*)"), _check_make),
    (re.compile(r"(?:\S*python3? |pytest )(?:\S+ )*?((?:tools|tests|perf)/[\w./]+)"), _check_path),
    (re.compile(rf"\S*python3? -m ((?:{'|'.join(_PACKAGES)})(?:\.\w+)+)"), _check_module),
    (re.compile(r"(--[a-z][\w-]*)"), _check_flag),
    (re.compile(rf"((?:{'|'.join((*_FOLDERS, *SOURCE_ROOTS))})/[\w./*<>-]*(?:::\w+)?)$"), _check_path),
    (re.compile(r"[\w*-]+\.(?:py|md|toml|sh|thrift|json|lock|html)$"), _check_basename),
    (re.compile(r"(foqs_[a-z]\w*)(?:\{.*\})?$"), _check_metric),
    (re.compile(r"foqs_\d+_(\w+)$"), _check_words),
    (re.compile(r"\[[a-z_]+(?:\.\w+)?\]$"), _check_section),
    (re.compile(rf"({_SECTIONS})\.(\w+\*?)$"), _check_option),
    (re.compile(r"FOQS_([A-Z_]+?)__([A-Z_]+)"), _check_option),
    (_MODULE, _check_module),
    (re.compile(r"\.[a-z]\w*$"), _check_near_module),
    (re.compile(r"([a-z]+(?:[A-Z][a-z]+)+)(?:\(.*\))?$"), _check_call),
    (re.compile(r"((?:[A-Z][a-z]+)+(?:[A-Z][a-z]*)*(?:\.\w+)*)(?:\(.*\))?$"), _check_words),
    (re.compile(r"((?:\w+\.)*\w*[A-Za-z]\w*_\w+)(?:\(.*\))?$"), _check_words),
)
"""The shapes, the first that matches decides."""
