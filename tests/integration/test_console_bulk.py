"""The console's page of bulk jobs, on a real host: filter, count, preview, go, interrupt, resume, cancel."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from foqs_client import Item, ItemFilter
from tests.integration.test_console import OpenHost, calls, kill_items, put
from tests.support.console import Answer, Browser, hidden_fields, job_id_of
from tests.support.poll import until

pytestmark = [pytest.mark.process]

SCRIPT = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenHost]:
    folder = tmp_path_factory.mktemp("bulk")
    with OpenHost(folder / "host", f"sqlite:{folder / 'data'}") as found:
        found.start()
        yield found


@pytest.fixture
def browser(host: OpenHost) -> Browser:
    return Browser(host.console_port)


def preview(browser: Browser, **fields: str) -> Answer:
    answer = browser.submit("/bulk", {"action": "preview", **fields})
    assert answer.status == 200, answer.text
    return answer


def ended(browser: Browser, job_id: str) -> Answer:
    """Return the page of a job that has ended."""
    pages: list[Answer] = []

    def look() -> bool:
        pages.append(browser.get("/bulk", job=job_id))
        return "Ended" in pages[-1].text and "Host that works on it" not in pages[-1].text

    until(look, "the job has ended")
    return pages[-1]


def test_items_are_counted_and_previewed_before_anything_is_changed(host: OpenHost, browser: Browser) -> None:
    ids = kill_items(host, "look", 30)
    page = preview(browser, what="redrive", topic="look")
    assert "Redrive 30 items?" in page.text
    assert sum(item_id in page.body for item_id in ids) == 20
    assert calls(host, lambda client: client.count(ItemFilter("look", ("dead",)))).items == 30


def test_job_is_started_once_and_followed_to_its_end(host: OpenHost, browser: Browser) -> None:
    kill_items(host, "sad", 7)
    go = hidden_fields(preview(browser, what="redrive", topic="sad", rate="1000"), "start")
    first, second = browser.submit("/bulk", go), browser.submit("/bulk", go)
    assert job_id_of(first) == job_id_of(second)
    done = ended(browser, job_id_of(first))
    assert "state done" in done.text
    assert "changed 7 of 7" in done.text
    assert calls(host, lambda client: client.count(ItemFilter("sad", ("ready",)))).items == 7
    listed = browser.get("/bulk")
    assert f"{job_id_of(first)} redrive sad done 7 7 0" in listed.text


def test_job_counts_first_and_remembers_what_for(host: OpenHost, browser: Browser) -> None:
    put(host, *[Item("many", b"x", priority=7)] * 9)
    put(host, *[Item("many", b"x")] * 2)
    fields = hidden_fields(preview(browser, what="move", topic="many", priority_min="7", move_to="few"), "start")
    count = {**fields, "action": "count"}
    first, second = browser.submit("/bulk", count), browser.submit("/bulk", count)
    assert job_id_of(first) == job_id_of(second)
    done = ended(browser, job_id_of(first))
    assert "counted 9" in done.text
    assert "Go: move 9 items" in done.text
    assert calls(host, lambda client: client.count(ItemFilter("few"))).items == 0

    host.stop()
    host.start()

    tab, other_tab = Browser(host.console_port), Browser(host.console_port)
    go = [hidden_fields(each.get("/bulk", job=job_id_of(first)), "start_counted") for each in (tab, other_tab)]
    moves = [tab.submit("/bulk", go[0]), other_tab.submit("/bulk", go[1])]
    assert job_id_of(moves[0]) == job_id_of(moves[1]) != job_id_of(first)
    assert "changed 9 of 9" in ended(tab, job_id_of(moves[0])).text
    assert calls(host, lambda client: client.count(ItemFilter("few"))).items == 9
    assert calls(host, lambda client: client.count(ItemFilter("many"))).items == 2


def test_job_is_interrupted_resumed_and_cancelled(host: OpenHost, browser: Browser) -> None:
    put(host, *[Item("slow", b"x")] * 50)
    go = hidden_fields(preview(browser, what="cancel", topic="slow", rate="1"), "start")
    job = job_id_of(browser.submit("/bulk", go))
    assert "state interrupted" in browser.post("/bulk", action="interrupt", job=job).text
    assert "state running" in browser.post("/bulk", action="resume", job=job).text
    asked = browser.post("/bulk", action="cancel", job=job)
    assert "ends the job for good" in asked.text
    browser.submit("/bulk", hidden_fields(asked, "cancel"))
    page = ended(browser, job).text
    assert "state cancelled" in page
    changed = re.search(r"changed (\d+) of 50 ", page)
    assert changed is not None, page
    assert int(changed[1]) < 50
    assert calls(host, lambda client: client.count(ItemFilter("slow"))).items == 50 - int(changed[1])


def test_items_are_moved_and_changed_by_the_form(host: OpenHost, browser: Browser) -> None:
    put(host, *[Item("from", b"x", delay_ms=3_600_000)] * 5)
    go = hidden_fields(
        preview(browser, what="update", topic="from", state="deferred", priority="-4", delay="2h", metadata="m"),
        "start",
    )
    assert "changed 5 of 5" in ended(browser, job_id_of(browser.submit("/bulk", go))).text
    go = hidden_fields(preview(browser, what="move", topic="from", move_to="to"), "start")
    assert "changed 5 of 5" in ended(browser, job_id_of(browser.submit("/bulk", go))).text
    page = calls(host, lambda client: client.peek("to", "deferred", 10))
    assert [(item.priority, item.metadata) for item in page.items] == [(-4, b"m")] * 5


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"what": "explode"}, "is not an action"),
        ({"what": "move", "topic": "a"}, "this is missing"),
        ({"what": "move", "topic": "a", "move_to": "a"}, "name another"),
        ({"what": "update"}, "this changes nothing"),
        ({"what": "cancel", "older_than": "soon"}, "soon"),
        ({"what": "cancel", "state": "sleeping"}, "is not a state"),
        ({"what": "cancel", "priority_min": "x"}, "not a whole number"),
    ],
)
def test_wrong_forms_are_refused_with_the_reason(browser: Browser, fields: dict[str, str], text: str) -> None:
    key = {"key": "k", "expected": "1"} if "move_to" in fields else {}
    answer = browser.submit("/bulk", {"action": "start" if key else "preview", **fields, **key})
    assert answer.status == 400
    assert text in answer.text


def test_markup_in_a_topic_is_shown_as_text(host: OpenHost, browser: Browser) -> None:
    put(host, Item(SCRIPT, b"x"))
    page = preview(browser, what="cancel", topic=SCRIPT)
    assert SCRIPT not in page.body
    job = ended(browser, job_id_of(browser.submit("/bulk", hidden_fields(page, "start"))))
    assert SCRIPT not in job.body
    assert SCRIPT in job.text
    assert SCRIPT not in browser.get("/bulk").body


def test_unknown_job_is_not_found(browser: Browser) -> None:
    assert browser.get("/bulk", job="0" * 16).status == 404
