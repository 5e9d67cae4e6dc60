"""The event stream of an open page of the console, as a browser reads it."""

from __future__ import annotations

import http.client
from urllib.parse import urlencode

from tests.support.console import Browser


class EventStream:
    """The event stream of an open page, read one event at a time.

    Args:
        page: the path of the page, with its query.
    """

    def __init__(self, browser: Browser, page: str) -> None:
        path, _, query = page.partition("?")
        cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
        self._connection = http.client.HTTPConnection("127.0.0.1", browser.port, timeout=60)
        self._connection.request(
            "GET", f"/stream?{urlencode({'page': path})}&{query}", headers={"Cookie": cookie} if cookie else {}
        )
        self._reply = self._connection.getresponse()
        self.status = self._reply.status
        self.headers = self._reply.headers

    def next(self, event: str) -> str | None:
        """Return the data of the next event of this name; None if the stream ends first."""
        name, data = "", []
        while line := self._line():
            field, _, value = line.rstrip("\n").partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                data.append(value)
            elif not field:
                if name == event and data:
                    return "\n".join(data)
                name, data = "", []
        return None

    def _line(self) -> str:
        """Return the next line; an empty one at the end."""
        try:
            return self._reply.readline().decode()
        except (http.client.IncompleteRead, ConnectionError):
            return ""

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> EventStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
