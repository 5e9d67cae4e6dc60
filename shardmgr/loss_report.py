"""What an accepted loss has left of a database: the last flush of each shard that the next primary has.

Always true: a report is written before the next term begins, while nobody changes the next primary, and is replaced by
that of the next accepted loss only. So a promotion with a proof leaves it as it is. Knows neither SQL nor items.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

from pydantic import Field

from shardmgr.model import TERM_MAX
from shardmgr.positions import LostRange
from shardmgr.primary_document import name_part
from shardmgr.registry.port import Registry
from shardmgr.strict_json import Form, Name, parse_document

FORMAT: Final = 1
FOLDER: Final = "losses"
_NUMBER_MAX: Final = (1 << 63) - 1
_PROBLEM_CHARS_MAX: Final = 300


@dataclass(slots=True, frozen=True)
class LastFlush:
    """The last flush of a shard that a server has.

    Attributes:
        epoch: 0 if nothing of the shard is left.
        written_ms: when it was written, in milliseconds since 1970 by the clock of the former primary.
        lost: what came after it; None: its owner had published nothing of it.
        problem: why it was not read; then nothing else is known. Empty: it was read.
    """

    shard: int
    epoch: int
    flush: int
    written_ms: int
    lost: LostRange | None = None
    problem: str = ""


@dataclass(slots=True, frozen=True)
class LossReport:
    """The report of one accepted loss.

    Attributes:
        term: the first term without what was lost.
        server: its primary.
        left: by number of the shard. Whatever was acknowledged after these flushes is lost.
    """

    term: int
    server: str
    left: Sequence[LastFlush]


class _FlushForm(Form):
    shard: Annotated[int, Field(ge=0)]
    epoch: Annotated[int, Field(ge=0, le=_NUMBER_MAX)]
    flush: Annotated[int, Field(ge=0, le=_NUMBER_MAX)]
    written_ms: int
    flushes_min: Annotated[int, Field(ge=0, le=_NUMBER_MAX)] | None = None
    items_min: Annotated[int, Field(ge=0, le=_NUMBER_MAX)] = 0
    items_max: Annotated[int, Field(ge=0, le=_NUMBER_MAX)] | None = None
    problem: str = ""


class _ReportForm(Form):
    term: Annotated[int, Field(ge=1, le=TERM_MAX)]
    server: Name
    left: list[_FlushForm]


# Each function here also raises `RegistryError`, and `MalformedDocument`.


async def read_loss_report(registry: Registry, database: str) -> LossReport | None:
    """Return the report of the last accepted loss of a database; None if no loss was accepted."""
    document = await registry.read(_name(database))
    return None if document is None else parse_loss_report(document.data)


async def write_loss_report(registry: Registry, database: str, report: LossReport) -> None:
    """Replace the report of a database. Raises RegistryConflict if another promoter writes it too."""
    document = await registry.read(_name(database))
    text = render_loss_report(report)
    if document is None or document.data != text:
        await registry.replace(_name(database), text, None if document is None else document.version)


def render_loss_report(report: LossReport) -> bytes:
    """Return the JSON text of a report; `parse_loss_report` reads it."""
    left = [
        {"shard": each.shard, "epoch": each.epoch, "flush": each.flush, "written_ms": each.written_ms}
        | ({} if each.lost is None else asdict(each.lost))
        | ({"problem": each.problem[:_PROBLEM_CHARS_MAX]} if each.problem else {})
        for each in report.left
    ]
    fields: dict[str, Any] = {"format": FORMAT, "term": report.term, "server": report.server, "left": left}
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def parse_loss_report(text: bytes) -> LossReport:
    """Parse a report. Raises `MalformedDocument`."""
    form = parse_document(_ReportForm, text, FORMAT)
    left = [
        LastFlush(each.shard, each.epoch, each.flush, each.written_ms, _lost(each), each.problem) for each in form.left
    ]
    return LossReport(form.term, form.server, left)


def _lost(form: _FlushForm) -> LostRange | None:
    if form.flushes_min is None:
        return None
    return LostRange(form.flushes_min, form.items_min, form.items_max)


def _name(database: str) -> str:
    return f"{FOLDER}/{name_part(database)}"
