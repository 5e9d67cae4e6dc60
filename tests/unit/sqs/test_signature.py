"""Signatures: what is refused, and as which of AWS' errors."""

from __future__ import annotations

import hashlib
import hmac
from datetime import UTC, datetime
from typing import Final

import pytest

from foqs.sqs.errors import SqsError
from foqs.sqs.signature import HttpRequest, Signature, canonical_request, signing_key, string_to_sign, verify

SECRET: Final = "secret"
NOW_S: Final = datetime(2026, 11, 26, 12, tzinfo=UTC).timestamp()
BODY: Final = hashlib.sha256(b"{}").hexdigest()
HEADERS: Final = (("Host", "q.example"), ("X-Amz-Date", "20261126T120000Z"), ("X-Amz-Target", "AmazonSQS.SendMessage"))
NAMES: Final = ("host", "x-amz-date", "x-amz-target")


def signed(
    headers: tuple[tuple[str, str], ...] = HEADERS,
    names: tuple[str, ...] = NAMES,
    scope: str = "20261126/eu-west-1/sqs/aws4_request",
    secret: str = SECRET,
    path: str = "/",
) -> HttpRequest:
    """Return a request with a signature of its own."""
    request = HttpRequest("POST", path, "", headers, BODY)
    day, region, service, _ = scope.split("/")
    date = next((value for name, value in headers if name.lower() == "x-amz-date"), "")
    signature = Signature("app", day, region, service, names, "", date)
    text = string_to_sign(signature, canonical_request(request, [name for name in names if name != "absent"]))
    digest = hmac.new(signing_key(secret, day, region, service), text.encode(), hashlib.sha256).hexdigest()
    value = f"AWS4-HMAC-SHA256 Credential=app/{scope}, SignedHeaders={';'.join(names)}, Signature={digest}"
    return HttpRequest("POST", path, "", (*headers, ("Authorization", value)), BODY)


def check(request: HttpRequest, now_s: float = NOW_S) -> Signature:
    return verify(request, lambda key: ["another", SECRET] if key == "app" else [], now_s)


def shape(request: HttpRequest, now_s: float = NOW_S) -> str:
    with pytest.raises(SqsError) as refused:
        check(request, now_s)
    return refused.value.shape


def with_header(request: HttpRequest, name: str, value: str) -> HttpRequest:
    return HttpRequest(request.method, request.path, request.query, (*request.headers, (name, value)), BODY)


def with_authorization(value: str) -> HttpRequest:
    return HttpRequest("POST", "/", "", (*HEADERS, ("Authorization", value)), BODY)


def test_each_secret_of_a_principal_is_valid() -> None:
    signature = check(signed())
    assert (signature.access_key, signature.region) == ("app", "eu-west-1")


@pytest.mark.parametrize("age_s", [-15 * 60, 0, 15 * 60])
def test_a_signature_is_valid_for_fifteen_minutes(age_s: int) -> None:
    check(signed(), NOW_S + age_s)


@pytest.mark.parametrize("age_s", [-15 * 60 - 1, 15 * 60 + 1])
def test_an_older_or_younger_signature_is_refused(age_s: int) -> None:
    assert shape(signed(), NOW_S + age_s) == "InvalidSignatureException"


def test_a_copy_within_its_time_is_accepted_as_aws_does() -> None:
    request = signed()
    check(request)
    check(request)


def test_a_request_without_a_signature_is_refused() -> None:
    assert shape(HttpRequest("POST", "/", "", HEADERS, BODY)) == "MissingAuthenticationTokenException"


def test_an_unknown_access_key_is_refused() -> None:
    request = signed()
    changed = [(name, value.replace("Credential=app/", "Credential=other/")) for name, value in request.headers]
    assert shape(HttpRequest("POST", "/", "", changed, BODY)) == "UnrecognizedClientException"


@pytest.mark.parametrize(
    "scope",
    ["20261125/eu-west-1/sqs/aws4_request", "20261126/eu-west-1/s3/aws4_request"],
    ids=["another day", "another service"],
)
def test_another_scope_is_refused(scope: str) -> None:
    assert shape(signed(scope=scope)) == "InvalidSignatureException"


def test_another_path_is_refused() -> None:
    request = signed(path="/000000000000/one")
    assert shape(HttpRequest("POST", "/000000000000/two", "", request.headers, BODY)) == "InvalidSignatureException"


@pytest.mark.parametrize("name", ["host", "x-amz-target"])
def test_headers_that_must_be_signed_are_required(name: str) -> None:
    names = tuple(signed_name for signed_name in NAMES if signed_name != name)
    assert shape(signed(names=names)) == "InvalidSignatureException"


def test_an_amz_header_that_was_added_later_is_refused() -> None:
    assert shape(with_header(signed(), "X-Amz-Target", "AmazonSQS.DeleteQueue")) == "InvalidSignatureException"
    assert shape(with_header(signed(), "X-Amz-Other", "1")) == "InvalidSignatureException"


def test_other_headers_may_be_added_by_proxies() -> None:
    check(with_header(signed(), "X-Amzn-Trace-Id", "Root=1"))


def test_a_declared_hash_must_be_that_of_the_body() -> None:
    headers = (*HEADERS, ("X-Amz-Content-Sha256", "0" * 64))
    assert shape(signed(headers, (*NAMES, "x-amz-content-sha256"))) == "InvalidSignatureException"
    unsigned = (*HEADERS, ("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD"))
    assert shape(signed(unsigned, (*NAMES, "x-amz-content-sha256"))) == "InvalidSignatureException"


def test_a_signed_header_must_be_present() -> None:
    assert shape(signed(names=(*NAMES, "absent"))) == "InvalidSignatureException"


@pytest.mark.parametrize(
    "value",
    [
        "",
        "Basic YTpi",
        "AWS4-HMAC-SHA256 Credential=app",
        "AWS4-HMAC-SHA256 Credential=app/1/2, SignedHeaders=host, Signature=" + "0" * 64,
        "AWS4-HMAC-SHA256 Credential=app/20261126/r/sqs/aws3, SignedHeaders=host, Signature=" + "0" * 64,
        "AWS4-HMAC-SHA256 Credential=app/20261126/r/sqs/aws4_request, SignedHeaders=Host, Signature=" + "0" * 64,
        "AWS4-HMAC-SHA256 Credential=app/20261126/r/sqs/aws4_request, SignedHeaders=host;host, Signature=" + "0" * 64,
    ],
)
def test_an_incomplete_header_is_refused(value: str) -> None:
    assert shape(with_authorization(value)) == "IncompleteSignatureException"


@pytest.mark.parametrize("digest", ["0" * 63, "A" * 64, "z" * 64])
def test_a_signature_that_is_no_digest_is_refused(digest: str) -> None:
    value = (
        "AWS4-HMAC-SHA256 Credential=app/20261126/r/sqs/aws4_request, "
        f"SignedHeaders=host;x-amz-date;x-amz-target, Signature={digest}"
    )
    assert shape(with_authorization(value)) == "InvalidSignatureException"


@pytest.mark.parametrize("place", ["20261126/\udcff/sqs", "20261126/e\udce9/sqs"])
def test_a_scope_that_is_no_utf8_is_refused_as_a_wrong_signature(place: str) -> None:
    value = (
        f"AWS4-HMAC-SHA256 Credential=app/{place}/aws4_request, SignedHeaders=host;x-amz-date;x-amz-target, "
        f"Signature={'0' * 64}"
    )
    assert shape(with_authorization(value)) == "InvalidSignatureException"


def presigned(expires_s: int) -> HttpRequest:
    """Return a request whose signature is in its query."""
    scope = "20261126/eu-west-1/sqs/aws4_request"
    query = (
        f"Action=ListQueues&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=app%2F{scope.replace('/', '%2F')}"
        f"&X-Amz-Date=20261126T120000Z&X-Amz-Expires={expires_s}&X-Amz-SignedHeaders=host"
    )
    request = HttpRequest("GET", "/", query, (("host", "q.example"),), BODY)
    signature = Signature("app", "20261126", "eu-west-1", "sqs", ("host",), "", "20261126T120000Z")
    text = string_to_sign(signature, canonical_request(request, ("host",)))
    key = signing_key(SECRET, "20261126", "eu-west-1", "sqs")
    digest = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    return HttpRequest("GET", "/", f"{query}&X-Amz-Signature={digest}", (("host", "q.example"),), BODY)


def test_a_signature_in_the_query_is_valid_until_it_expires() -> None:
    assert check(presigned(60), NOW_S + 60).access_key == "app"
    assert shape(presigned(60), NOW_S + 61) == "InvalidSignatureException"
    assert shape(presigned(8 * 24 * 3600)) == "IncompleteSignatureException"
