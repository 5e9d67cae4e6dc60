"""Verifies AWS Signature Version 4, in a header or in the query of a URL.

Always true: the signature covers the method, the path without its dots, the query,
the host, every `x-amz-*` header and the body; signatures are compared in constant
time. Pure: the time and the secrets are arguments. Written from AWS' specification
("Create a signed AWS API request"). A copy of a request is accepted while its time is
valid, because SDKs sign equal requests of one second equally: 15 minutes, or as long
as a presigned URL says.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, TypeAlias
from urllib.parse import quote, unquote_to_bytes

from foqs.sqs.errors import SqsError

ALGORITHM: Final = "AWS4-HMAC-SHA256"
CLOCK_DIFFERENCE_S_MAX: Final = 15 * 60
"""A signature may be this much older or younger than the host's clock."""
EXPIRES_S_MAX: Final = 7 * 24 * 3600
"""The longest validity of a signature in a query."""
SIGNED_HEADERS_MAX: Final = 100

_TERMINATOR: Final = "aws4_request"
_SECURITY_HEADER: Final = "x-amz-security-token"
"""A header that some clients add after they have signed, so it need not be signed. Nothing reads it here."""
_SIGNATURE_PARAMETER: Final = b"X-Amz-Signature"
_FIELD: Final = re.compile(r"(Credential|SignedHeaders|Signature)=([^,\s]+)", re.ASCII)
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+", re.ASCII)
_DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_SPACES: Final = re.compile(r"\s+")


@dataclass(slots=True, frozen=True)
class HttpRequest:
    """The parts of a request that a signature covers. `path` and `query` are as they were sent; `headers` has every line, in order."""

    method: str
    path: str
    query: str
    headers: Sequence[tuple[str, str]]
    body_sha256: str


@dataclass(slots=True, frozen=True)
class Signature:
    """The parts of a signature. `signed_at` is in the form 20150830T123600Z; `expires_s` is None in a header."""

    access_key: str
    day: str
    region: str
    service: str
    signed_headers: Sequence[str]
    signature: str
    signed_at: str
    expires_s: int | None = None

    @property
    def scope(self) -> str:
        return f"{self.day}/{self.region}/{self.service}/{_TERMINATOR}"


Secrets: TypeAlias = Callable[[str], Sequence[str]]
"""Returns the secrets of an access key, of which each is valid; none if the key is unknown."""


def verify(request: HttpRequest, secrets_of: Secrets, now_s: float, service: str = "sqs") -> Signature:
    """Return the signature of a request if it is valid.

    Args:
        now_s: seconds since 1970-01-01 UTC.

    Raises:
        SqsError: the signature is missing, incomplete, too old, or not that of the request.
    """
    signature = check_claims(request.query, request.headers, secrets_of, now_s, service)
    declared = _group(request.headers).get("x-amz-content-sha256")
    if declared is not None and declared != [request.body_sha256]:
        raise _mismatch("The x-amz-content-sha256 header is not the SHA-256 of the body.")
    text = string_to_sign(signature, canonical_request(request, signature.signed_headers))
    is_equal = False
    for secret in secrets_of(signature.access_key):
        key = signing_key(secret, signature.day, signature.region, signature.service)
        expected = hmac.new(key, text.encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()
        is_equal |= hmac.compare_digest(expected, signature.signature)
    if not is_equal:
        raise _mismatch(
            "The request signature we calculated does not match the signature you provided. "
            "Check your AWS Secret Access Key and signing method."
        )
    return signature


def check_claims(
    query: str, headers: Sequence[tuple[str, str]], secrets_of: Secrets, now_s: float, service: str = "sqs"
) -> Signature:
    """Return the signature that a request claims, before its body is known.

    Raises:
        SqsError: it cannot be valid with any body.
    """
    grouped = _group(headers)
    signature = parse_signature(query, grouped)
    _check_scope(signature, service)
    _check_time(signature, now_s)
    _check_signed_headers(signature, grouped)
    if not secrets_of(signature.access_key):
        raise SqsError("UnrecognizedClientException", "The security token included in the request is invalid.")
    return signature


# --------------------------------------------------------------------- parsing


def parse_signature(query: str, headers: Mapping[str, Sequence[str]]) -> Signature:
    """Return the signature that a request carries. Raises `SqsError`."""
    values = headers.get("authorization", ())
    if len(values) > 1:
        raise _incomplete("There are several Authorization headers.")
    if values:
        return _parse_header(values[0], headers)
    parameters = {name.decode("latin-1"): value.decode("latin-1") for name, value in _parse_query(query)}
    if "X-Amz-Signature" in parameters or "X-Amz-Algorithm" in parameters:
        return _parse_parameters(parameters)
    raise SqsError("MissingAuthenticationTokenException", "The request must contain a signature.")


def _parse_header(text: str, headers: Mapping[str, Sequence[str]]) -> Signature:
    algorithm, _, rest = text.strip().partition(" ")
    if algorithm != ALGORITHM:
        raise _incomplete(f"The algorithm must be {ALGORITHM}.")
    fields = dict(_FIELD.findall(rest))
    if len(fields) < 3:
        raise _incomplete("Authorization header requires 'Credential', 'SignedHeaders' and 'Signature' parameters.")
    dates = headers.get("x-amz-date", ())
    if len(dates) != 1:
        raise _incomplete("Authorization header requires existence of either 'X-Amz-Date' or a 'Date' header.")
    return _build(fields["Credential"], fields["SignedHeaders"], fields["Signature"], dates[0], None)


def _parse_parameters(parameters: Mapping[str, str]) -> Signature:
    def value(name: str) -> str:
        text = parameters.get(f"X-Amz-{name}")
        if text is None:
            raise _incomplete(f"The query requires the parameter 'X-Amz-{name}'.")
        return text

    if value("Algorithm") != ALGORITHM:
        raise _incomplete(f"The algorithm must be {ALGORITHM}.")
    expires = value("Expires")
    if not (expires.isascii() and expires.isdigit() and len(expires) < 8 and 1 <= int(expires) <= EXPIRES_S_MAX):
        raise _incomplete(f"X-Amz-Expires must be a number from 1 to {EXPIRES_S_MAX}.")
    return _build(value("Credential"), value("SignedHeaders"), value("Signature"), value("Date"), int(expires))


def _build(credential: str, signed_headers: str, digest: str, signed_at: str, expires_s: int | None) -> Signature:
    parts = credential.rsplit("/", 4)
    if len(parts) != 5 or not all(parts):
        raise _incomplete("Credential must have the form KEY/DATE/REGION/SERVICE/aws4_request.")
    access_key, day, region, service, terminator = parts
    if terminator != _TERMINATOR:
        raise _incomplete(f"Credential should be scoped with a valid terminator: '{_TERMINATOR}'.")
    names = signed_headers.split(";")
    if len(names) > SIGNED_HEADERS_MAX or len(set(names)) < len(names) or not all(map(_HEADER_NAME.fullmatch, names)):
        raise _incomplete("SignedHeaders must be distinct header names in lower case, separated by ';'.")
    if not _DIGEST.fullmatch(digest):
        raise _mismatch("The signature must be 64 hexadecimal digits in lower case.")
    return Signature(access_key, day, region, service, names, digest, signed_at, expires_s)


# ------------------------------------------------------------------------ checks


def _check_scope(signature: Signature, service: str) -> None:
    if signature.service != service:
        raise _mismatch(f"Credential should be scoped to correct service: '{service}'.")
    if signature.signed_at[:8] != signature.day:
        raise _mismatch(
            f"Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date: "
            f"'{signature.day[:8]}' != '{signature.signed_at[:8]}'."
        )


def _check_time(signature: Signature, now_s: float) -> None:
    try:
        signed_at_s = datetime.strptime(signature.signed_at, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise _incomplete("X-Amz-Date must be in the form 20150830T123600Z.") from None
    age_s = now_s - signed_at_s
    now = datetime.fromtimestamp(now_s, UTC).strftime("%Y%m%dT%H%M%SZ")
    age_s_max, remedy = CLOCK_DIFFERENCE_S_MAX, "correct the client's clock"
    if signature.expires_s is not None:
        age_s_max, remedy = signature.expires_s, "sign the request again"
    if age_s > age_s_max:
        raise _mismatch(
            f"Signature expired: {signature.signed_at} is more than {age_s_max} s before the host's clock, {now}; {remedy}."
        )
    if age_s < -CLOCK_DIFFERENCE_S_MAX:
        raise _mismatch(
            f"Signature not yet current: {signature.signed_at} is more than {CLOCK_DIFFERENCE_S_MAX} s after the "
            f"host's clock, {now}; correct the client's clock."
        )


def _check_signed_headers(signature: Signature, headers: Mapping[str, Sequence[str]]) -> None:
    required = {"host"} | {name for name in headers if name.startswith("x-amz-") and name != _SECURITY_HEADER}
    missing = sorted(required.difference(signature.signed_headers))
    if missing:
        raise _mismatch(f"There were headers present in the request which were not signed: {', '.join(missing)}.")
    absent = [name for name in signature.signed_headers if name not in headers]
    if absent:
        raise _mismatch(f"There were headers signed which are not present in the request: {', '.join(absent)}.")


# ---------------------------------------------------------------- what is signed


def canonical_request(request: HttpRequest, signed_headers: Sequence[str]) -> str:
    """Return the canonical form of a request: the text whose hash is signed."""
    headers = _group(request.headers)
    lines = [f"{name}:{','.join(_trim(value) for value in headers[name])}\n" for name in signed_headers]
    return "\n".join(
        (
            request.method,
            quote(resolve_path(request.path).encode("utf-8", "surrogateescape"), safe="/~-_."),
            _canonical_query(request.query),
            "".join(lines),
            ";".join(signed_headers),
            request.body_sha256,
        )
    )


def string_to_sign(signature: Signature, canonical: str) -> str:
    """Return the text that is signed."""
    digest = hashlib.sha256(canonical.encode("utf-8", "surrogateescape")).hexdigest()
    return f"{ALGORITHM}\n{signature.signed_at}\n{signature.scope}\n{digest}"


@lru_cache(maxsize=256)
def signing_key(secret: str, day: str, region: str, service: str) -> bytes:
    """Return the key of a secret for one day, region and service."""
    key = f"AWS4{secret}".encode()
    for part in (day, region, service, _TERMINATOR):
        key = hmac.new(key, part.encode("utf-8", "surrogateescape"), hashlib.sha256).digest()
    return key


def resolve_path(path: str) -> str:
    """Return a path without dots and empty segments. The signature covers this form, so only this form may be routed."""
    segments: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            segments[-1:] = []
        elif segment not in ("", "."):
            segments.append(segment)
    resolved = "/" + "/".join(segments)
    return f"{resolved}/" if segments and path.endswith(("/", "/.", "/..")) else resolved


def _canonical_query(query: str) -> str:
    pairs = [(_encode(name), _encode(value)) for name, value in _parse_query(query) if name != _SIGNATURE_PARAMETER]
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))


def _parse_query(query: str) -> list[tuple[bytes, bytes]]:
    """Return the names and values of a query, without their percent-encoding."""
    parts = query.encode("utf-8", "surrogateescape").split(b"&")
    pairs = [part.partition(b"=") for part in parts if part]
    return [(unquote_to_bytes(name), unquote_to_bytes(value)) for name, _, value in pairs]


def _encode(data: bytes) -> str:
    return quote(data, safe="-_.~")


def _trim(value: str) -> str:
    return _SPACES.sub(" ", value.strip())


def _group(headers: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the values of each header by its name in lower case."""
    grouped: dict[str, list[str]] = {}
    for name, value in headers:
        grouped.setdefault(name.lower(), []).append(value)
    return grouped


def _incomplete(text: str) -> SqsError:
    return SqsError("IncompleteSignatureException", text)


def _mismatch(text: str) -> SqsError:
    return SqsError("InvalidSignatureException", text)
