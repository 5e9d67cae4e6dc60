"""The page of bulk jobs: nothing is changed before it is counted, by the page or by a job."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from foqs.console.bulk_pages import COUNT_AGE_S_MAX, bulk
from foqs_client import BulkJob, DeadlineExceeded, InvalidArgument, ItemCount, ItemFilter
from tests.support.console import Answer, hidden_fields
from tests.support.console_pages import AnsweringClient, answer_of, page_request_of

ENDED_AT_MS = 1_700_000_001_000
IN_TIME_S = ENDED_AT_MS / 1_000 + COUNT_AGE_S_MAX
LATE_S = IN_TIME_S + 1
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
    changed_at_ms=ENDED_AT_MS,
    ended_at_ms=ENDED_AT_MS,
    counts_for="redrive",
)
MADE = replace(COUNT, id="77aa", action="redrive", counts_for=None, state="running", start_key=f"counted-{COUNT.id}")
FORM = {"action": "preview", "what": "redrive", "priority_min": "1", "rate": "50"}
NO_SHARDS = SimpleNamespace(shards=())


def see(
    client: AnsweringClient, path: str = "/bulk", form: Mapping[str, str] | None = None, now_s: float = IN_TIME_S
) -> Answer:
    async def look() -> web.StreamResponse:
        return await bulk(page_request_of(client, path, form=form, now_s=now_s))

    return answer_of(asyncio.run(look()))


def send(client: AnsweringClient, form: Mapping[str, str], now_s: float = IN_TIME_S) -> str:
    """Send a form that starts a job; return the address that the browser gets."""
    with pytest.raises(web.HTTPSeeOther) as sent:
        see(client, form=form, now_s=now_s)
    return str(sent.value.location)


def counting(answer: Any) -> AnsweringClient:
    return AnsweringClient(
        {"count": answer, "routing": NO_SHARDS, "start_bulk_job": COUNT, "bulk_job": COUNT, "bulk_jobs": [COUNT]}
    )


def test_list_of_jobs_has_columns_only_for_what_is_known() -> None:
    client = counting(None)
    assert f"Refused Started {COUNT.id}" in see(client).text
    client.answers["bulk_jobs"] = [COUNT, replace(COUNT, started_by="ops", owner="host7")]
    page = see(client)
    assert f"Refused Started By Host {COUNT.id}" in page.text
    assert "UTC ops host7" in page.text


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
    client.answers["bulk_job"] = replace(COUNT, **changes)
    assert "Go:" not in see(client, f"/bulk?job={COUNT.id}").text
    with pytest.raises(InvalidArgument):
        see(client, form={"action": "start_counted", "job": COUNT.id})
    assert "start_bulk_job" not in [name for name, _, _ in client.calls]


def test_count_whose_change_was_started_leads_to_that_job() -> None:
    client = counting(None)
    go = hidden_fields(see(client, f"/bulk?job={COUNT.id}"), "start_counted")
    client.answers["bulk_jobs"] = [MADE, COUNT]
    for now_s in (IN_TIME_S, LATE_S):
        page = see(client, f"/bulk?job={COUNT.id}", now_s=now_s)
        assert f'href="/bulk?namespace=default&amp;job={MADE.id}"' in page.body
        assert "Go:" not in page.text
        assert "ount again" not in page.text
        assert send(client, go, now_s) == f"/bulk?namespace=default&job={MADE.id}"
    assert "start_bulk_job" not in [name for name, _, _ in client.calls]


def test_count_older_than_an_hour_leads_to_another_count() -> None:
    client = counting(None)
    go = hidden_fields(see(client, f"/bulk?job={COUNT.id}"), "start_counted")
    page = see(client, f"/bulk?job={COUNT.id}", now_s=LATE_S)
    assert "Go:" not in page.text
    with pytest.raises(InvalidArgument, match="count again"):
        see(client, form=go, now_s=LATE_S)
    assert "start_bulk_job" not in [name for name, _, _ in client.calls]
    send(client, hidden_fields(page, "count_again"))
    assert client.calls[-1] == (
        "start_bulk_job",
        ("count", COUNT.only, None),
        {"move_to": None, "rate_per_s": 50, "start_key": f"again-{COUNT.id}", "counts_for": "redrive"},
    )


def test_job_that_does_not_count_is_not_counted_again() -> None:
    client = counting(None)
    client.answers["bulk_job"] = MADE
    with pytest.raises(InvalidArgument, match="does not count"):
        see(client, form={"action": "count_again", "job": MADE.id})


def test_change_without_a_number_is_refused() -> None:
    client = counting(None)
    with pytest.raises(InvalidArgument, match="count the items first"):
        see(client, form={"action": "start", "what": "cancel", "key": "k"})
    assert client.calls == []
