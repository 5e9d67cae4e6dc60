"""A name of a host, address, region or database that holds markup makes no element of a page."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from aiohttp import web

from foqs.console.cluster_pages import cluster
from foqs_client import Host, Shard
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


def page(text: str, form: dict[str, str] | None = None) -> Answer:
    """Return the page of a cluster whose hosts and shards have this text in every field."""
    host = Host(text, 7411, text, text, 1, False, 0.0, text, name=text, nonce=text)
    drained = replace(host, name=f"{text}2", draining=True)
    shard = Shard(0, text, (text, 7411), 1, text, 0, text, text, owner_name=text, database=text, pinned_to=text)
    client = AnsweringClient(
        {"list_hosts": [host, drained], "list_shards": [shard, replace(shard, shard=1, owner=None)]}
    )

    async def look() -> web.StreamResponse:
        return await cluster(page_request_of(client, "/cluster", form=form, host_name=text))

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
