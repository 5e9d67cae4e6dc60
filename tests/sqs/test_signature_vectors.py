"""Signature Version 4 against AWS' own vectors, from botocore's source package."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from foqs.sqs.errors import SqsError
from foqs.sqs.signature import HttpRequest, canonical_request, string_to_sign, verify
from tests.support.source_packages import BOTOCORE, fetched

SECRET: Final = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
NOW_S: Final = datetime(2015, 8, 30, 12, 36, tzinfo=UTC).timestamp()
CASES_MIN: Final = 34


@cache
def vectors() -> dict[str, Path]:
    """Return the signed requests by name."""
    folder = fetched(BOTOCORE) / "tests" / "unit" / "auth" / "aws4_testsuite"
    return {file.stem: file for file in sorted(folder.rglob("*.sreq"))}


def signed_request(file: Path) -> HttpRequest:
    """Return a vector's request with the header of its `.authz`.

    botocore compares with `.authz`, too: the header in one `.sreq` (a session token) is not that of its `.sts`.
    """
    request = parse(file.read_text())
    kept = [(name, value) for name, value in request.headers if name != "Authorization"]
    authorization = file.with_suffix(".authz").read_text()
    headers = [*kept, ("Authorization", authorization)]
    return HttpRequest(request.method, request.path, request.query, headers, request.body_sha256)


def parse(text: str) -> HttpRequest:
    head, _, body = text.replace("\r\n", "\n").partition("\n\n")
    request_line, *lines = head.split("\n")
    method, _, rest = request_line.partition(" ")
    target = rest.rpartition(" ")[0]
    path, _, query = target.partition("?")
    return HttpRequest(method, path, query, list(parse_headers(lines)), hashlib.sha256(body.encode()).hexdigest())


def parse_headers(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the headers; a line that begins with a space continues the one before."""
    unfolded: list[str] = []
    for line in lines:
        if line.startswith((" ", "\t")):
            unfolded[-1] += line
        else:
            unfolded.append(line)
    for line in unfolded:
        name, _, value = line.partition(":")
        yield name, value


def test_every_vector_of_aws_is_accepted() -> None:
    accepted = []
    for name, file in vectors().items():
        request = signed_request(file)
        signature = verify(request, lambda key: [SECRET] if key == "AKIDEXAMPLE" else [], NOW_S, "service")
        canonical = canonical_request(request, signature.signed_headers)
        assert canonical == file.with_suffix(".creq").read_text().replace("\r\n", "\n"), name
        text = string_to_sign(signature, canonical)
        assert text == file.with_suffix(".sts").read_text().replace("\r\n", "\n"), name
        accepted.append(name)
    assert len(accepted) >= CASES_MIN


def test_no_vector_is_accepted_with_another_secret_path_or_body() -> None:
    for name, file in vectors().items():
        request = signed_request(file)
        others = {
            "secret": (request, SECRET[::-1]),
            "path": (HttpRequest("GET", "/other", request.query, request.headers, request.body_sha256), SECRET),
            "body": (HttpRequest("GET", request.path, request.query, request.headers, "0" * 64), SECRET),
        }
        for what, (changed, secret) in others.items():
            with pytest.raises(SqsError) as refused:
                verify(changed, lambda key, secret=secret: [secret], NOW_S, "service")  # type: ignore[misc]
            assert refused.value.shape == "InvalidSignatureException", (name, what)
