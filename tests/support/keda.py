"""The HTTP requests of KEDA's scalers, and what it makes of the replies, for tests.

The requests have the bytes that Go's client sends for them; those to SQS have the headers
of AWS' SDK for Go in another order. As in KEDA, any status but 200
is an error, and so is a value that is not a number. Triggers are read from docs/scaling.md.
"""

from __future__ import annotations

import gzip
import json
import re
import socket
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote_plus, urlsplit
from uuid import uuid4

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

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


def sqs_queue_length(
    awsEndpoint: str,  # noqa: N803 - the names of the trigger's metadata
    awsRegion: str,  # noqa: N803
    queueURL: str,  # noqa: N803
    queueLength: str = "5",  # noqa: N803
    scaleOnInFlight: str = "true",  # noqa: N803
    scaleOnDelayed: str = "false",  # noqa: N803
) -> int:
    """Ask as the scaler `aws-sqs-queue` does, by AWS' SDK for Go, version 2. Raises ScalerError."""
    assert int(queueLength) > 0
    names = ["ApproximateNumberOfMessages"]
    names += ["ApproximateNumberOfMessagesNotVisible"] * (scaleOnInFlight == "true")
    names += ["ApproximateNumberOfMessagesDelayed"] * (scaleOnDelayed == "true")
    body = json.dumps({"AttributeNames": names, "QueueUrl": queueURL}).encode()
    request = AWSRequest("POST", awsEndpoint + "/", _sdk_headers(body), body)
    SigV4Auth(Credentials("key", "secret"), "sqs", awsRegion).add_auth(request)
    head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    authority = urlsplit(awsEndpoint).netloc
    with socket.create_connection(_address_of(authority), 10) as connection:
        connection.sendall(f"POST / HTTP/1.1\r\nHost: {authority}\r\n{head}\r\n".encode() + body)
        reply = connection.makefile("rb")
        status = int(reply.readline().split()[1])
        length = 0
        while line := reply.readline().strip().lower():
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        found = json.loads(reply.read(length))
    if status != 200:
        raise ScalerError(f"the reply is {status}: {found}")
    return sum(int(found["Attributes"][name]) for name in names)


def _sdk_headers(body: bytes) -> dict[str, str]:
    """Return the headers that the SDK signs besides Host and X-Amz-Date, and those that it sends."""
    return {
        "User-Agent": "aws-sdk-go-v2/1.39.0 ua/2.1 os/linux lang/go#1.25.0 md/GOOS#linux md/GOARCH#amd64 api/sqs#1.42.0",
        "Content-Length": str(len(body)),
        "Amz-Sdk-Invocation-Id": str(uuid4()),
        "Amz-Sdk-Request": "attempt=1; max=3",
        "Content-Type": "application/x-amz-json-1.0",
        "X-Amz-Target": "AmazonSQS.GetQueueAttributes",
        "X-Amzn-Query-Mode": "true",
        "Accept-Encoding": "gzip",
    }


def _address_of(authority: str) -> tuple[str, int]:
    host, _, port = authority.rpartition(":")
    return host, int(port)
