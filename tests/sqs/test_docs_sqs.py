"""docs/sqs.md: its examples run as written, and its tables name what the code has."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import textwrap
from pathlib import Path
from typing import Any, Final

import pytest

from foqs.sqs.outgoing_messages import DELAY_ATTRIBUTE, PRIORITY_ATTRIBUTE, PRIORITY_TAG, TTL_ATTRIBUTE
from foqs_contract.size_ceilings import PAYLOAD_BYTES_CEILING
from tests.support.foreign_suites import environment_python
from tests.support.keda import sqs_queue_length
from tests.support.poll import until
from tests.support.sqs_host import SqsHost

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

PAGE: Final = (Path(__file__).parents[2] / "docs" / "sqs.md").read_text()
ENDPOINT: Final = "http://127.0.0.1:7414"
CREDENTIALS: Final = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_DEFAULT_REGION": "us-east-1"}


def example(heading: str, language: str, host: SqsHost) -> str:
    """Return the example below a heading, with the endpoint of a host in place of its own."""
    section = PAGE.partition(f" {heading}\n")[2]
    code = re.search(rf"^( *)```{language}\n(.*?)^\1```", section, re.DOTALL | re.MULTILINE)
    assert code is not None, f"docs/sqs.md has no example in {language} below {heading}"
    return textwrap.dedent(code[2]).replace(ENDPOINT, host.endpoint).replace(ENDPOINT[7:], host.endpoint[7:])


def environment(folder: Path, host: SqsHost, programs: Path | None = None) -> dict[str, str]:
    path = "/usr/local/bin:/usr/bin:/bin" if programs is None else f"{programs}:/usr/bin:/bin"
    return {"PATH": path, "HOME": str(folder), "AWS_ENDPOINT_URL_SQS": host.endpoint, **CREDENTIALS}


def run(command: list[str], folder: Path, variables: dict[str, str]) -> str:
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-4_000:]
    return done.stdout


def test_the_first_example_runs(
    host: SqsHost, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in re.findall(r"(AWS_\w+)=(\S+)", example("Try it", "sh", host)):
        monkeypatch.setenv(name, value)
    assert os.environ["AWS_ENDPOINT_URL_SQS"] == host.endpoint
    exec(compile(example("Try it", "python", host), "docs/sqs.md", "exec"), {})
    assert capsys.readouterr().out == "urgent\nlater\n"


def test_the_example_of_a_fifo_queue_runs(
    host: SqsHost, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL_SQS": host.endpoint}.items():
        monkeypatch.setenv(name, value)
    exec(compile(example("FIFO queues", "python", host), "docs/sqs.md", "exec"), {})
    assert capsys.readouterr().out == "pay\npack\nsend\n"


def test_the_example_of_a_fair_queue_runs(
    host: SqsHost, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL_SQS": host.endpoint}.items():
        monkeypatch.setenv(name, value)
    program = compile(example("Fair queues", "python", host), "docs/sqs.md", "exec")

    def takes_turns() -> bool:
        exec(program, {})
        return capsys.readouterr().out == "quiet came among the first 10\n"

    # The queue is fair a second or two after its first message, which a slow host may need.
    until(takes_turns, "the groups take turns")


def test_the_example_of_the_aws_cli_runs(host: SqsHost, tmp_path: Path) -> None:
    programs = environment_python(("awscli==1.46.2",), is_constrained=False).parent
    script = "set -e\nshopt -s expand_aliases\n" + example("AWS CLI", "sh", host)
    assert run(["bash", "-c", script], tmp_path, environment(tmp_path, host, programs)) == "5\n"
    assert json.loads((tmp_path / "sent.json").read_text())["MessageId"]


@pytest.mark.node
def test_the_example_in_javascript_runs(host: SqsHost, node_folder: Path, tmp_path: Path) -> None:
    program = node_folder / "example.mjs"
    program.write_text(example("JavaScript", "js", host))
    assert run(["node", str(program)], tmp_path, environment(tmp_path, host)) == "5\n"


@pytest.mark.parametrize(
    ("heading", "requirement", "worker", "call"),
    [
        ("Celery", "celery[sqs]==5.7.0", ["celery", "--app", "tasks", "worker", "--pool", "solo"], "add.delay(2, 3)"),
        (
            "Dramatiq",
            "dramatiq-sqs==0.4.4",
            ["dramatiq", "--processes", "1", "--threads", "1", "tasks"],
            "add.send(2, 3)",
        ),
    ],
)
def test_the_example_of_a_task_queue_runs(
    host: SqsHost, tmp_path: Path, heading: str, requirement: str, worker: list[str], call: str
) -> None:
    python = environment_python((requirement,), is_constrained=False)
    (tmp_path / "tasks.py").write_text(example(heading, "python", host))
    variables = environment(tmp_path, host, python.parent) | {"PYTHONPATH": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    run([str(python), "-c", f"from tasks import add; {call}"], tmp_path, variables)
    said = tmp_path / "said"
    with said.open("wb") as output:
        program = [str(python), str(python.with_name(worker[0])), *worker[1:]]
        process = subprocess.Popen(program, cwd=tmp_path, env=variables, stdout=output, stderr=output)
    try:
        until(lambda: bool(re.search(r"(^|[^\d])5$", said.read_text(), re.MULTILINE)), f"{heading} prints 5", 180)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in (0, -signal.SIGTERM), said.read_text()
    finally:
        process.kill()
        process.wait()


def test_keda_counts_the_messages_that_wait_or_are_in_flight(host: SqsHost, sqs: Any) -> None:
    trigger = dict(re.findall(r'^      (\w+): "(.*)"$', example("KEDA", "yaml", host), re.MULTILINE))
    assert trigger["awsEndpoint"].endswith(":7414")
    assert trigger["queueURL"].startswith(trigger["awsEndpoint"])
    queue = sqs.create_queue(QueueName="keda")["QueueUrl"]
    counted = {**trigger, "awsEndpoint": host.endpoint, "queueURL": queue}
    assert sqs_queue_length(**counted) == 0
    for _ in range(5):
        sqs.send_message(QueueUrl=queue, MessageBody="x")
    sqs.send_message(QueueUrl=queue, MessageBody="later", DelaySeconds=600)
    assert len(sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=2)["Messages"]) == 2
    assert sqs_queue_length(**counted) == 5
    assert sqs_queue_length(**counted | {"scaleOnInFlight": "false"}) == 3
    assert sqs_queue_length(**counted | {"scaleOnDelayed": "true"}) == 6
    assert sqs_queue_length(**counted | {"queueURL": "keda"}) == 5


def test_the_page_names_what_the_code_has() -> None:
    for name in (PRIORITY_ATTRIBUTE, DELAY_ATTRIBUTE, TTL_ATTRIBUTE, PRIORITY_TAG):
        assert f"`{name}`" in PAGE
    assert f"{PAYLOAD_BYTES_CEILING:,}" in PAGE
