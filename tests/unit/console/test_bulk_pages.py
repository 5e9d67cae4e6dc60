"""The page of bulk jobs: nothing is changed before it is counted, by the page or by a job."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from foqs.console.bulk_pages import bulk
from foqs_client import BulkJob, DeadlineExceeded, InvalidArgument, ItemCount, ItemFilter
from tests.support.console import Answer, hidden_fields
from tests.support.console_pages import AnsweringClient, answer_of, visit_of

COUNT = BulkJob(
    id="5f3c9a0b7d2e4f10",
    action="count",
    only=ItemFilter(None, ("dead",), priority_min=1),
    change=None,
    move_to=None,
    rate_per_s=50,
    expected=None,
    state="done",
    seen=1_234_567,
    changed=0,
    failed=0,
    at_least=False,
    refusal=None,
    problem=None,
    started_by=None,
    owner=None,
    started_at_ms=1_700_000_000_000,
    changed_at_ms=1_700_000_001_000,
    ended_at_ms=1_700_000_001_000,
    counts_for="redrive",
)
FORM = {"action": "preview", "what": "redrive", "priority_min": "1", "rate": "50"}
NO_SHARDS = SimpleNamespace(shards=())


def see(client: AnsweringClient, path: str = "/bulk", form: Mapping[str, str] | None = None) -> Answer:
    async def look() -> web.StreamResponse:
        return await bulk(visit_of(client, path, form=form))

    return answer_of(asyncio.run(look()))


def send(client: AnsweringClient, form: Mapping[str, str]) -> str:
    """Send a form that starts a job; return the address that the browser gets."""
    with pytest.raises(web.HTTPSeeOther) as sent:
        see(client, form=form)
    return str(sent.value.location)


def counting(answer: Any) -> AnsweringClient:
    return AnsweringClient({"count": answer, "routing": NO_SHARDS, "start_bulk_job": COUNT, "bulk_job": COUNT})


def test_counted_items_are_changed_by_one_button_with_their_number() -> None:
    page = see(counting(ItemCount(7, None)), form=FORM)
    assert hidden_fields(page, "start")["expected"] == "7"
    assert "Count first" not in page.text


def test_items_that_cannot_be_counted_in_time_are_counted_first() -> None:
    client = counting(DeadlineExceeded("too many"))
    page = see(client, form=FORM)
    with pytest.raises(AssertionError):
        hidden_fields(page, "start")
    assert "Count first" in page.text
    assert send(client, hidden_fields(page, "count")) == f"/bulk?namespace=default&job={COUNT.id}"
    name, args, options = client.calls[-1]
    assert (name, args) == ("start_bulk_job", ("count", ItemFilter(None, ("dead",), priority_min=1), None))
    assert options.pop("start_key").startswith("count-")
    assert options == {"move_to": None, "rate_per_s": 50, "counts_for": "redrive"}


def test_job_that_has_counted_offers_the_change_that_it_remembers() -> None:
    client = counting(None)
    page = see(client, f"/bulk?job={COUNT.id}")
    assert "Go: redrive 1,234,567 items" in page.text
    go = hidden_fields(page, "start_counted")
    send(client, go)
    send(client, go)
    first, second = [(args, options) for name, args, options in client.calls if name == "start_bulk_job"]
    assert first == second, "one count leads to one change"
    assert first == (
        ("redrive", COUNT.only, None),
        {
            "move_to": None,
            "rate_per_s": 50,
            "expected": 1_234_567,
            "start_key": f"counted-{COUNT.id}",
        },
    )


@pytest.mark.parametrize(
    "changes",
    [{"state": "running"}, {"state": "failed"}, {"state": "cancelled"}, {"counts_for": None}, {"action": "cancel", "counts_for": None}],
)  # fmt: skip
def test_count_that_is_not_done_leads_to_no_change(changes: dict[str, Any]) -> None:
    client = counting(None)
    client.answers["bulk_job"] = BulkJob(
        **{**{name: getattr(COUNT, name) for name in COUNT.__dataclass_fields__}, **changes}
    )
    assert "Go:" not in see(client, f"/bulk?job={COUNT.id}").text
    with pytest.raises(InvalidArgument):
        see(client, form={"action": "start_counted", "job": COUNT.id})
    assert "start_bulk_job" not in [name for name, _, _ in client.calls]


def test_change_without_a_number_is_refused() -> None:
    client = counting(None)
    with pytest.raises(InvalidArgument, match="count the items first"):
        see(client, form={"action": "start", "what": "cancel", "key": "k"})
    assert client.calls == []
