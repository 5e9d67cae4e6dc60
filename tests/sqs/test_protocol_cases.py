"""AWS' protocol cases of JSON 1.0 with query compatibility, from botocore's source package, and botocore's own parser."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import botocore.session
import pytest
from botocore.parsers import create_parser

from foqs.sqs.errors import SHAPES, ErrorShape, SqsError
from foqs.sqs.http_messages import HttpReply
from foqs.sqs.json_protocol import JsonProtocol
from tests.support.source_packages import BOTOCORE, fetched


@cache
def cases() -> dict[str, Any]:
    """Return the cases of replies by id."""
    folder = fetched(BOTOCORE) / "tests" / "unit" / "protocols" / "output"
    suites = json.loads((folder / "json_1_0-query-compatible.json").read_text())
    return {case["id"]: case for suite in suites for case in suite["cases"]}


def reply(shape: str, *, is_query_mode: bool = True) -> HttpReply:
    return JsonProtocol(is_query_mode=is_query_mode).error("SendMessage", SqsError(shape, "Hi"))


def test_the_cases_are_those_that_this_test_knows() -> None:
    assert set(cases()) == {"QueryCompatibleAwsJson10NoCustomCodeError", "QueryCompatibleAwsJson10CustomCodeError"}


def test_a_failure_has_the_form_of_the_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    case = cases()["QueryCompatibleAwsJson10CustomCodeError"]
    wanted = json.loads(case["response"]["body"])
    namespace, _, name = wanted["__type"].partition("#")
    code = case["response"]["headers"]["x-amzn-query-error"].partition(";")[0]
    status = case["response"]["status_code"]
    monkeypatch.setitem(SHAPES, name, ErrorShape(code, status, namespace))
    found = reply(name)
    body = json.loads(found.body)
    assert (found.status, body["__type"], body["message"]) == (status, wanted["__type"], wanted["message"])
    for header, value in case["response"]["headers"].items():
        assert {name.lower(): text for name, text in found.headers.items()}[header.lower()] == value


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("is_query_mode", [False, True])
def test_botocore_reads_each_failure(shape: str, is_query_mode: bool) -> None:
    model = botocore.session.get_session().get_service_model("sqs")
    found = reply(shape, is_query_mode=is_query_mode)
    response = {
        "status_code": found.status,
        "headers": {name.lower(): value for name, value in found.headers.items()},
        "body": found.body,
    }
    parsed = create_parser("json").parse(response, model.operation_model("SendMessage").output_shape)
    assert parsed["Error"]["Message"] == "Hi"
    assert parsed["Error"]["Code"] in (shape, SHAPES[shape].query_code)
    if is_query_mode:
        assert found.status == SHAPES[shape].status
    else:
        assert found.status in (400, 413) or found.status >= 500


def test_every_failure_of_the_model_that_a_host_makes_is_known() -> None:
    model = botocore.session.get_session().get_service_model("sqs")
    of_model = {shape.name for shape in model.error_shapes}
    own = {name for name, shape in SHAPES.items() if shape.namespace == "com.amazonaws.sqs"}
    assert own <= of_model
    assert of_model - own == {name for name in of_model if name.startswith("Kms")}
