"""The Query protocol: forms become the parameters that JSON has, and results become XML that any parser reads."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any
from urllib.parse import quote, unquote_to_bytes, urlencode
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.sqs.errors import SHAPES, SqsError
from foqs.sqs.http_messages import HttpHead, HttpReply
from foqs.sqs.query_protocol import FORM_TYPE, NAMESPACE, PARAMETERS_MAX, QueryProtocol, is_query_request

PROTOCOL = QueryProtocol()
TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)


def head(method: str = "POST", target: str = "/", media_type: str = FORM_TYPE) -> HttpHead:
    return HttpHead(method, "http", target, [("Content-Type", f"{media_type}; charset=utf-8")])


def read(parameters: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    action, found = PROTOCOL.read(head(), urlencode(parameters).encode())
    return action, found.members


def refusal(body: bytes | Mapping[str, Any]) -> str:
    data = body if isinstance(body, bytes) else urlencode(body).encode()
    with pytest.raises(SqsError) as refused:
        PROTOCOL.read(head(), data)
    return refused.value.shape


def parsed(reply: HttpReply) -> ElementTree.Element:
    root = ElementTree.fromstring(reply.body)
    for element in root.iter():
        assert element.tag.startswith(f"{{{NAMESPACE}}}")
        element.tag = element.tag.partition("}")[2]
    return root


def test_requests_are_recognised() -> None:
    assert is_query_request(head())
    assert is_query_request(head("GET", "/?Action=ListQueues", ""))
    assert not is_query_request(head("GET", "/", ""))
    assert not is_query_request(head("POST", "/?Action=ListQueues", "application/x-amz-json-1.0"))


def test_a_form_has_the_members_of_json() -> None:
    action, members = read(
        {
            "Action": "SendMessageBatch",
            "Version": "2012-11-05",
            "QueueUrl": "http://h/1/mail",
            "SendMessageBatchRequestEntry.2.Id": "b",
            "SendMessageBatchRequestEntry.2.MessageBody": "grüße & <b>\r\n",
            "SendMessageBatchRequestEntry.2.DelaySeconds": "7",
            "SendMessageBatchRequestEntry.1.Id": "a",
            "SendMessageBatchRequestEntry.1.MessageBody": "",
            "SendMessageBatchRequestEntry.1.MessageAttribute.1.Name": "n",
            "SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.DataType": "Number",
            "SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.StringValue": "12",
            "SendMessageBatchRequestEntry.1.MessageSystemAttribute.1.Name": "AWSTraceHeader",
            "SendMessageBatchRequestEntry.1.MessageSystemAttribute.1.Value.DataType": "String",
            "SendMessageBatchRequestEntry.1.MessageSystemAttribute.1.Value.StringValue": "t",
        }
    )
    assert action == "SendMessageBatch"
    assert members == {
        "QueueUrl": "http://h/1/mail",
        "Entries": [
            {
                "Id": "a",
                "MessageBody": "",
                "MessageAttributes": {"n": {"DataType": "Number", "StringValue": "12"}},
                "MessageSystemAttributes": {"AWSTraceHeader": {"DataType": "String", "StringValue": "t"}},
            },
            {"Id": "b", "MessageBody": "grüße & <b>\r\n", "DelaySeconds": 7},
        ],
    }


def test_lists_maps_and_numbers() -> None:
    names = {f"AttributeName.{place}": str(place) for place in range(1, 13)}
    _, members = read(
        {
            "Action": "x",
            **names,
            "Attribute.1.Name": "DelaySeconds",
            "Attribute.1.Value": "7",
            "Attribute.2.Name": "Policy",
            "Tag.1.Key": "k",
            "Tag.1.Value": "v",
            "TagKey.1": "k",
            "WaitTimeSeconds": "-1",
            "Entries": "",
            "MessageAttributeName": "All",
        }
    )
    assert members["AttributeNames"] == [str(place) for place in range(1, 13)]
    assert members["Attributes"] == {"DelaySeconds": "7", "Policy": ""}
    assert (members["Tags"], members["TagKeys"]) == ({"k": "v"}, ["k"])
    assert members["Entries"] == []
    assert (members["WaitTimeSeconds"], members["MessageAttributeNames"]) == (-1, ["All"])


def test_a_single_entry_of_a_list_or_map_needs_no_number() -> None:
    _, members = read(
        {
            "Action": "x",
            "Attribute.Name": "DelaySeconds",
            "Attribute.Value": "7",
            "Tag.Key": "k",
            "Tag.Value": "v",
            "MessageAttribute.Name": "n",
            "MessageAttribute.Value.DataType": "String",
            "MessageAttribute.Value.StringValue": "x",
            "DeleteMessageBatchRequestEntry.Id": "a",
            "DeleteMessageBatchRequestEntry.ReceiptHandle": "h",
            "AttributeName": "All",
        }
    )
    assert members == {
        "Attributes": {"DelaySeconds": "7"},
        "Tags": {"k": "v"},
        "MessageAttributes": {"n": {"DataType": "String", "StringValue": "x"}},
        "Entries": [{"Id": "a", "ReceiptHandle": "h"}],
        "AttributeNames": ["All"],
    }


def test_a_get_has_its_parameters_in_the_url_without_those_of_the_signature() -> None:
    action, found = PROTOCOL.read(head("GET", "/1/mail?Action=DeleteQueue&X-Amz-Signature=x&X-Amz-Date=y", ""), b"")
    assert (action, found.members) == ("DeleteQueue", {})


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        (b"", "MissingRequiredParameterException"),
        (b"Action.1=x", "MissingRequiredParameterException"),
        (b"Action=x&Action=y", "SerializationException"),
        (b"Action=x&A=1&A.1=2", "SerializationException"),
        (b"Action=x&A.1=2&A=1", "SerializationException"),
        (b"Action=x&" + b"A." * 20 + b"b=1", "SerializationException"),
        (b"Action=x&" + b"a=b&" * PARAMETERS_MAX, "SerializationException"),
        (b"Action=x&a=%ff", "SerializationException"),
        (b"Action=x&a=%FF", "SerializationException"),
        (b"Action=x&a=\xff", "SerializationException"),
        (b"." * 100_000 + b"=1", "SerializationException"),
        (b"Action=x&a=\xff", "SerializationException"),
        (b"Action=x&a=%zz", "SerializationException"),
        (b"Action=x&a=%4", "SerializationException"),
        (b"Action=x&AttributeName.0=a", "SerializationException"),
        (b"Action=x&AttributeName.99999=a", "SerializationException"),
        (b"Action=x&AttributeName.x=a", "SerializationException"),
        (b"Action=x&Tag.Key=a&Tag.1.Key=b", "SerializationException"),
        (b"Action=x&Tag.Value=a", "SerializationException"),
        (b"Action=x&Tag.Key.1=a", "MissingRequiredParameterException"),
        (b"Action=x&Attribute.1=a", "MissingRequiredParameterException"),
        (b"Action=x&Attribute.1.Value=a", "MissingRequiredParameterException"),
        (b"Action=x&DelaySeconds=1.5", "InvalidParameterValueException"),
        (b"Action=x&DelaySeconds=", "InvalidParameterValueException"),
        (b"Action=x&DelaySeconds=" + b"9" * 10_000, "InvalidParameterValueException"),
    ],
)
def test_a_form_that_no_client_sends_is_refused(body: bytes, shape: str) -> None:
    assert refusal(body) == shape


@given(TEXTS, st.sampled_from(("", "=", "\r\n=", " _=~")))
def test_any_text_is_read_as_it_was_sent(text: str, unquoted: str) -> None:
    """Clients differ in what they leave unquoted."""
    data = quote(text, safe=unquoted).encode()
    assert PROTOCOL.read(head(), b"Action=x&MessageBody=" + data)[1].members == {"MessageBody": text}


def test_a_form_that_is_all_escapes_is_read_without_a_call_for_each() -> None:
    """A message of 1 MiB in Chinese has 3 MiB of escapes; urllib would block the event loop for a second."""
    data = b"%e4%b8%ad" * 100_000
    calls = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        _, found = PROTOCOL.read(head(), b"Action=x&MessageBody=" + data)
    finally:
        sys.setprofile(None)
    assert found.members == {"MessageBody": unquote_to_bytes(data).decode()}
    assert calls < 1_000


@given(st.dictionaries(TEXTS, TEXTS, max_size=8))
def test_any_form_is_read_or_refused(parameters: dict[str, str]) -> None:
    try:
        PROTOCOL.read(head(), urlencode({"Action": "x", **parameters}).encode())
    except SqsError as error:
        assert SHAPES[error.shape].status == 400


def succeeded(action: str, result: Mapping[str, Any]) -> HttpReply:
    """Return the reply of a success, as the service makes it."""
    return PROTOCOL.result(action, b"".join(PROTOCOL.encode(action, result, "request")), "request")


def test_a_received_message_has_the_xml_of_sqs() -> None:
    message = {
        "MessageId": "id",
        "Body": 'a "quoted"\r\n<body>',
        "Attributes": {"SenderId": "s", "SentTimestamp": "1"},
        "MessageAttributes": {"n": {"DataType": "Number", "StringValue": "1"}},
    }
    reply = succeeded("ReceiveMessage", {"Messages": [message, {"MessageId": "other"}]})
    assert reply.headers["Content-Type"] == "text/xml"
    assert b"a &quot;quoted&quot;&#xD;\n&lt;body&gt;" in reply.body
    root = parsed(reply)
    assert root.tag == "ReceiveMessageResponse"
    messages = root.findall("ReceiveMessageResult/Message")
    assert [found.findtext("MessageId") for found in messages] == ["id", "other"]
    assert messages[0].findtext("Body") == message["Body"]
    attributes = {found.findtext("Name"): found.findtext("Value") for found in messages[0].findall("Attribute")}
    assert attributes == message["Attributes"]
    assert messages[0].findtext("MessageAttribute/Value/StringValue") == "1"
    assert root.findtext("ResponseMetadata/RequestId") == reply.headers["x-amzn-RequestId"]


def test_a_batch_has_an_element_for_each_entry() -> None:
    failed = {"Id": "b", "SenderFault": True, "Code": "c", "Message": "m"}
    root = parsed(succeeded("DeleteMessageBatch", {"Successful": [{"Id": "a"}], "Failed": [failed]}))
    result = root.find("DeleteMessageBatchResult")
    assert result is not None
    assert result.findtext("DeleteMessageBatchResultEntry/Id") == "a"
    assert result.findtext("BatchResultErrorEntry/SenderFault") == "true"


@pytest.mark.parametrize(
    ("action", "result", "path", "found"),
    [
        ("ListQueues", {"QueueUrls": ["u", "v"]}, "ListQueuesResult/QueueUrl", ["u", "v"]),
        ("ListDeadLetterSourceQueues", {"queueUrls": ["u"]}, "ListDeadLetterSourceQueuesResult/QueueUrl", ["u"]),
        ("GetQueueAttributes", {"Attributes": {"a": "b"}}, "GetQueueAttributesResult/Attribute/Value", ["b"]),
        ("ListQueueTags", {"Tags": {"a": "b"}}, "ListQueueTagsResult/Tag/Key", ["a"]),
        (
            "ListMessageMoveTasks",
            {"Results": [{"Status": "RUNNING", "ApproximateNumberOfMessagesMoved": 3}]},
            "ListMessageMoveTasksResult/ListMessageMoveTasksResultEntry/ApproximateNumberOfMessagesMoved",
            ["3"],
        ),
    ],
)
def test_lists_and_maps_of_replies(action: str, result: Any, path: str, found: list[str]) -> None:
    assert [element.text for element in parsed(succeeded(action, result)).findall(path)] == found


def test_an_action_without_a_result_has_no_element_of_one() -> None:
    assert [element.tag for element in parsed(succeeded("DeleteMessage", {}))] == ["ResponseMetadata"]
    assert [element.tag for element in parsed(succeeded("ReceiveMessage", {}))] == [
        "ReceiveMessageResult",
        "ResponseMetadata",
    ]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_failure_has_the_code_and_the_status_of_its_shape(shape: str) -> None:
    reply = PROTOCOL.error("SendMessage", SqsError(shape, "why <it> \x00 failed"))
    root = parsed(reply)
    assert (reply.status, root.tag) == (SHAPES[shape].status, "ErrorResponse")
    assert root.findtext("Error/Code") == SHAPES[shape].query_code
    assert root.findtext("Error/Type") == ("Sender" if reply.status < 500 else "Receiver")
    if shape != "QueueDoesNotExist":  # has a text of its own
        assert root.findtext("Error/Message") == "why <it> \ufffd failed"


@given(TEXTS)
def test_any_text_can_stand_in_xml(text: str) -> None:
    root = parsed(succeeded("GetQueueUrl", {"QueueUrl": text}))
    found = root.findtext("GetQueueUrlResult/QueueUrl") or ""
    assert len(found) == len(text)
