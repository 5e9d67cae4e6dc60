"""The page of a cluster: what it says of databases with regions, and that no name on it makes an element."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from aiohttp import web

from foqs.console.cluster_pages import cluster, loss_text
from foqs.queue.tier_figures import DatabaseState
from foqs_client import FoqsError, Host, Shard, Unavailable
from tests.support.console import Answer, elements
from tests.support.console_pages import AnsweringClient, answer_of, page_request_of

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</text></svg><iframe src=//evil.example>",
    "</title><b>",
    "{{ 7 * 7 }}",
    "javascript:alert(1)",
]


class Databases:
    """Figures of a host that have databases only, or why these are not known."""

    def __init__(self, found: Sequence[DatabaseState] | FoqsError) -> None:
        self._found = found

    async def databases(self) -> Sequence[DatabaseState]:
        if isinstance(self._found, FoqsError):
            raise self._found
        return self._found


def page_with(found: Sequence[DatabaseState] | FoqsError) -> str:
    """Return the text of a page of a cluster with these databases."""
    client = AnsweringClient({"list_hosts": [], "list_shards": []})

    async def look() -> web.StreamResponse:
        return await cluster(page_request_of(client, "/cluster", figures=Databases(found)))

    return answer_of(asyncio.run(look())).text


MAIN = DatabaseState(
    "main",
    "r1",
    "a",
    3,
    "serving",
    False,
    {"b": True, "c": False},
    {"b": 0, "c": 90_000},
    None,
    ["c is not reached"],
)


def test_page_shows_where_the_primary_of_each_database_is_and_what_its_loss_would_cost() -> None:
    sound = replace(MAIN, name="orders", replicas={"b": True, "c": True}, lacks_if_lost=[])
    behind = replace(MAIN, name="mails", is_async=True, lags_ms={"b": 2_500, "c": 4_000}, max_lag_ms=10_000)
    blocked = replace(sound, name="jobs", blocked="writes wait: no replica acknowledges")
    shown = page_with([MAIN, sound, behind, blocked])
    for words in (
        "main r1 a 3 serving semi-sync b proven, 0.0 s behind; c not proven, 90.0 s behind "
        "hosts would not replace it: c is not reached",
        "orders r1 a 3 serving semi-sync b proven, 0.0 s behind; c proven, 90.0 s behind nothing that was acknowledged",
        "jobs r1 a 3 serving writes wait: no replica acknowledges semi-sync",
        "mails r1 a 3 serving async b, 2.5 s behind; c, 4.0 s behind "
        "enqueues of 2.5 s to the shards of this host, at most those of 10 s",
    ):
        assert words in shown


@pytest.mark.parametrize(
    ("database", "loss"),
    [
        (replace(MAIN, state="fenced"), "its primary is being replaced"),
        (replace(MAIN, lacks_if_lost=None), "not known: no host has said which replicas are proven"),
        (
            replace(MAIN, replicas={"b": True}, lacks_if_lost=["no other server", "b lags"]),
            "hosts would not replace it: no other server; b lags",
        ),
        (replace(MAIN, is_async=True, replicas={}), "everything: it has no replica"),
        (replace(MAIN, is_async=True, lags_ms={}), "what replicas lack; hosts with its shards show how much"),
        (replace(MAIN, is_async=True, lags_ms={"b": 100}), "enqueues of 0.1 s to the shards of this host"),
    ],
)
def test_loss_now_is_named_in_each_state(database: DatabaseState, loss: str) -> None:
    assert loss_text(database) == loss


def test_page_without_such_databases_has_no_section_for_them_and_says_why_they_are_not_known() -> None:
    assert "server in each region" not in page_with([])
    assert "the servers of databases are not known: no session" in page_with(
        Unavailable("the servers of databases are not known: no session")
    )


def page(text: str, form: dict[str, str] | None = None) -> Answer:
    """Return the page of a cluster whose hosts and shards have this text in every field."""
    host = Host(text, 7411, text, text, 1, False, 0.0, text, name=text, nonce=text)
    drained = replace(host, name=f"{text}2", draining=True)
    shard = Shard(0, text, (text, 7411), 1, text, 0, text, text, owner_name=text, database=text, pinned_to=text)
    database = DatabaseState(text, text, text, 2, text, False, {text: True}, {text: 1_500}, None, [text])
    client = AnsweringClient(
        {"list_hosts": [host, drained], "list_shards": [shard, replace(shard, shard=1, owner=None)]}
    )

    async def look() -> web.StreamResponse:
        figures = Databases([database])
        return await cluster(page_request_of(client, "/cluster", form=form, host_name=text, figures=figures))

    return answer_of(asyncio.run(look()))


@pytest.mark.parametrize("text", HOSTILE)
def test_markup_in_names_of_hosts_is_text_on_the_page_of_the_cluster(text: str) -> None:
    shown = page(text)
    assert elements(shown.body) == elements(page("harmless").body)
    assert text not in shown.body or not set(text) & set("<>\"'")
    assert "49" not in shown.text


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("form", [{"action": "drain"}, {"action": "move_shard", "shard": "0"}])
def test_markup_in_a_name_is_text_where_the_page_asks(text: str, form: dict[str, str]) -> None:
    asked, harmless = (page(name, {**form, "host": name, "to": name}) for name in (text, "harmless"))
    assert elements(asked.body) == elements(harmless.body)
