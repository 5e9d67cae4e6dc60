"""A client in another language, generated from the contract, enqueues, dequeues and acks an item.

`host_address` is the address of its host: a separate process on SQLite shards in a
temporary folder.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from foqs_contract.errors import ErrorCode

HERE = Path(__file__).resolve().parent / "node"
CONTRACT = Path(__file__).resolve().parents[2] / "thrift" / "foqs.thrift"

pytestmark = [pytest.mark.node, pytest.mark.process]


def done(command: list[str], folder: Path, remedy: str) -> str:
    """Return a command's output. If it fails, fail the test with `remedy`."""
    if shutil.which(command[0]) is None:
        pytest.fail(f"{command[0]} is missing; install it: {remedy}")
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    if result.returncode:
        pytest.fail(f"{' '.join(command)} failed: {remedy}\n{result.stdout}\n{result.stderr}")
    return result.stdout


@pytest.fixture(scope="module")
def node_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the library, the generated code and the program."""
    folder = tmp_path_factory.mktemp("node")
    for name in ("package.json", "client.js"):
        shutil.copyfile(HERE / name, folder / name)
    done(
        ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"],
        folder,
        "this test installs thrift@0.17.0 with npm and needs a package registry in reach",
    )
    done(
        ["thrift", "--gen", "js:node", "-out", str(folder), str(CONTRACT)],
        folder,
        "the contract must compile with thrift-compiler 0.17",
    )
    return folder


@pytest.fixture(scope="module")
def host_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """Yield the address of a host process that has an empty namespace `default`."""
    folder = tmp_path_factory.mktemp("host")
    program = [str(Path(sys.executable).parent / "foqs"), "dev", "--data", "data", "--port", "0", "--http-port", "0"]
    with (folder / "log").open("wb") as log:
        host = subprocess.Popen(program, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert host.stdout is not None
        words = host.stdout.readline().split()
        assert words[:1] == ["Thrift"], (folder / "log").read_text()
        url = urlsplit(words[1])
        assert url.hostname is not None
        assert url.port is not None
        yield url.hostname, url.port
    finally:
        host.terminate()
        host.communicate(timeout=30)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("protocol", ["binary", "compact"])
def test_a_generated_node_client_enqueues_dequeues_and_acks(
    node_folder: Path, host_address: tuple[str, int], protocol: str
) -> None:
    host, port = host_address
    output = done(
        ["node", "client.js", str(node_folder), host, str(port), protocol], node_folder, "see the program's own words"
    )
    said: dict[str, Any] = json.loads(output)
    first, second, none = said["ids"]
    assert none is None
    assert said["refused"] == [None, None, {"code": ErrorCode.INVALID_ARGUMENT, "field": "items[2].topic"}]
    assert said["delivered"] == [
        {"id": second, "topic": said["topic"], "priority": -7, "payload": "00fff9", "attempt": 1},
        {"id": first, "topic": said["topic"], "priority": 5, "payload": "00ff05", "attempt": 1},
    ]
    assert said["acked"] == [True, True]
    assert said["again"] == [True, True]
    assert said["routed"] == 20
    assert said["no_namespace"] == {"code": ErrorCode.NAMESPACE_NOT_FOUND, "field": "namespace_name"}
    assert said["not_served"]["code"] == ErrorCode.NOT_IMPLEMENTED
