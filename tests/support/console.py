"""A small browser for tests of the console: it keeps cookies and sends forms, as a program or an attacker would."""

from __future__ import annotations

import html
import http.client
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import urlencode
from uuid import uuid4

OWN_FORM = {"Sec-Fetch-Site": "same-origin"}


@dataclass(slots=True)
class Answer:
    """An answer of the console."""

    status: int
    headers: http.client.HTTPMessage
    body: str

    @property
    def text(self) -> str:
        """The page without its markup."""
        return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", self.body)))


@dataclass(slots=True)
class Browser:
    """A browser at one console.

    Attributes:
        context: for https; None: http.
        address: its own, of loopback.
    """

    port: int
    context: ssl.SSLContext | None = None
    cookies: dict[str, str] = field(default_factory=dict)
    address: str = "127.0.0.1"

    def get(self, path: str, headers: dict[str, str] | None = None, **query: str) -> Answer:
        return self.send("GET", f"{path}?{urlencode(query)}" if query else path, headers=headers)

    def post(self, path: str, headers: dict[str, str] | None = None, follow: bool = True, **form: str) -> Answer:
        """Send a form, and follow the redirect that answers it."""
        sent = {"Content-Type": "application/x-www-form-urlencoded"} | (OWN_FORM if headers is None else headers)
        answer = self.send("POST", path, urlencode(form).encode(), sent)
        return self.get(answer.headers["Location"]) if follow and answer.status == 303 else answer

    def submit(self, path: str, form: Mapping[str, str]) -> Answer:
        """Send a form whose fields are known only at run time, and follow the redirect that answers it."""
        return self.post(path, None, True, **form)

    def send(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Answer:
        connection: http.client.HTTPConnection = (
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=30, source_address=(self.address, 0))
            if self.context is None
            else http.client.HTTPSConnection("127.0.0.1", self.port, timeout=30, context=self.context)
        )
        try:
            cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
            connection.request(method, path, body, ({"Cookie": cookie} if cookie else {}) | (headers or {}))
            reply = connection.getresponse()
            answer = Answer(reply.status, reply.headers, reply.read().decode())
        finally:
            connection.close()
        for line in answer.headers.get_all("Set-Cookie") or ():
            name, _, value = line.partition(";")[0].partition("=")
            self.cookies[name] = value.strip('"')
        return answer


def unique(word: str) -> str:
    """Return a name that no other test, and no former run of this one, has used."""
    return f"{word}-{uuid4().hex[:12]}"


def hidden_fields(answer: Answer, action: str) -> dict[str, str]:
    """Return the hidden fields of the form of this action."""
    for form in re.findall(r"<form.*?</form>", answer.body, re.DOTALL):
        pairs = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', form)
        fields = {html.unescape(name): html.unescape(value) for name, value in pairs}
        if fields.get("action") == action:
            return fields
    raise AssertionError(f"the page has no form of the action {action}")


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, tuple[str, ...]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, tuple(name for name, _ in attrs)))


def elements(body: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return the elements of a page in their order, each with the names of its attributes."""
    parser = _Elements()
    parser.feed(body)
    return parser.found


def job_id_of(answer: Answer) -> str:
    """Return the id of the bulk job that a page shows."""
    found = re.search(r"Bulk job ([0-9a-f]{16})", answer.text)
    assert found is not None, answer.text
    return found[1]
