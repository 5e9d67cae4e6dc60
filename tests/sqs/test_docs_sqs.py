"""docs/sqs.md: its example runs as written, and its tables name what the code has."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Final

import pytest

from foqs.options.options import PAYLOAD_BYTES_CEILING
from foqs.sqs.outgoing_messages import DELAY_ATTRIBUTE, PRIORITY_ATTRIBUTE, PRIORITY_TAG, TTL_ATTRIBUTE
from tests.support.sqs_host import SqsHost

PAGE: Final = (Path(__file__).parents[2] / "docs" / "sqs.md").read_text()


@pytest.mark.process
@pytest.mark.timeout(60)
def test_the_example_runs(host: SqsHost, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (shell,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for name, value in re.findall(r"(AWS_\w+)=(\S+)", shell):
        monkeypatch.setenv(name, value.replace("http://127.0.0.1:7414", host.endpoint))
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(textwrap.dedent(example), "docs/sqs.md", "exec"), {})
    assert capsys.readouterr().out == "urgent\nlater\n"


def test_the_page_names_what_the_code_has() -> None:
    for name in (PRIORITY_ATTRIBUTE, DELAY_ATTRIBUTE, TTL_ATTRIBUTE, PRIORITY_TAG):
        assert f"`{name}`" in PAGE
    assert f"{PAYLOAD_BYTES_CEILING:,}" in PAGE
