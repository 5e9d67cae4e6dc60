"""The HTTP requests of KEDA's scalers, and what it makes of the replies, for tests.

The requests have the bytes that Go's client sends for them. As in KEDA, any status but 200
is an error, and so is a value that is not a number. Triggers are read from docs/scaling.md.
"""

from __future__ import annotations

import gzip
import json
import re
import socket
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote_plus

PAGE: Final = Path(__file__).parents[2] / "docs" / "scaling.md"
_REQUEST: Final = (
    "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: Go-http-client/1.1\r\n{headers}Accept-Encoding: gzip\r\n\r\n"
)


class ScalerError(Exception):
    """The scaler has no value now."""


def documented(setting: str) -> str:
    """Return a setting of a trigger in docs/scaling.md. A block of several lines is one string."""
    text = PAGE.read_text()
    block = re.search(rf"^( +){setting}: \|\n((?:\1  .*\n)+)", text, re.MULTILINE)
    if block:
        return "".join(line.strip() + "\n" for line in block[2].splitlines())
    found = re.findall(rf'^ +{setting}: "(.*)"$', text, re.MULTILINE)
    assert len(set(found)) == 1, f"docs/scaling.md must have one {setting}"
    return str(found[0])


def metrics_api_value(port: int, path: str, value_location: str, token: str | None = None) -> float:
    """Ask as the scaler `metrics-api` does, with `authMode: bearer` if there is a token. Raises ScalerError."""
    headers = "" if token is None else f"Authorization: Bearer {token}\r\n"
    value = _get(port, path, headers).get(value_location)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ScalerError(f"valueLocation must point to value of type number or a string, got {value!r}")
    return value


def prometheus_value(port: int, query: str, time: str) -> float:
    """Ask as the scaler `prometheus` does. Raises ScalerError."""
    result = _get(port, f"/api/v1/query?query={quote_plus(query)}&time={time}")["data"]["result"]
    if not result:
        return 0.0
    if len(result) > 1:
        raise ScalerError("the query returned multiple elements")
    return float(result[0]["value"][1])


def _get(port: int, path: str, headers: str = "") -> Any:
    request = _REQUEST.format(path=path, host=f"127.0.0.1:{port}", headers=headers).encode()
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(request)
        reply = connection.makefile("rb")
        status = int(reply.readline().split()[1])
        headers_of_reply = {}
        while line := reply.readline().strip().lower():
            name, _, value = line.partition(b":")
            headers_of_reply[name] = value.strip()
        body = reply.read(int(headers_of_reply[b"content-length"]))
        if headers_of_reply.get(b"content-encoding") == b"gzip":
            body = gzip.decompress(body)
    if status != 200:
        raise ScalerError(f"api returned {status}: {body!r}")
    return json.loads(body)
