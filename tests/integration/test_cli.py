"""The installed program, as a person or a script runs it, against a real host and a real database."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.mariadb import MariaDb
from tests.support.poll import until
from tests.support.ports import free_port

pytestmark = pytest.mark.process

PROGRAM = Path(sys.executable).with_name("foqs")


def environment(**more: str) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.upper().startswith("FOQS_") or name == "FOQS_PURE"
    }
    return kept | {"NO_COLOR": "1"} | more


def foqs(*args: str, stdin: str = "", cwd: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, *args],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=cwd,
        env=environment(**more),
        check=False,
    )


class Dev:
    """A running `foqs dev`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.http_port = free_port(), free_port()
        self.out = folder / "out"
        self.err = folder / "err"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"foqs://127.0.0.1:{self.port}"

    def start(self) -> None:
        args = [
            "dev",
            "--data",
            str(self.folder / "data"),
            "--port",
            str(self.port),
            "--http-port",
            str(self.http_port),
        ]
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [PROGRAM, *args], stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment(), cwd=self.folder
            )
        until(self._ready, "foqs dev is ready")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(30)

    def __call__(self, *args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return foqs(*args, stdin=stdin, FOQS_ADDRESS=self.address)

    def rows(self, *args: str, stdin: str = "") -> list[dict[str, Any]]:
        done = self(*args, "-o", "json", stdin=stdin)
        assert done.returncode == 0, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found

    def _ready(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            pytest.fail(f"foqs dev ended with {self.process.returncode}: {self.err.read_text()}")
        return self.get("/readyz") == 200

    def get(self, path: str) -> int | None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{path}", timeout=5) as reply:
                return int(reply.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except OSError:
            return None


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[Dev]:
    host = Dev(tmp_path)
    host.start()
    yield host
    host.stop(signal.SIGKILL)


def test_commands_take_an_item_from_enqueue_to_ack(dev: Dev) -> None:
    [made] = dev.rows("enqueue", "mail", "hello", "--priority", "-5", "--metadata", "m")
    assert dev.rows("item", "show", made["id"])[0]["state"] == "ready"
    assert [(row["topic"], row["ready"]) for row in dev.rows("topic", "list")] == [("mail", 1)]
    [got] = dev.rows("dequeue", "mail=5", "--wait", "5s")
    assert (got["id"], got["payload"], got["metadata"], got["priority"]) == (made["id"], "hello", "m", -5)
    assert dev.rows("item", "show", made["id"])[0]["state"] == "leased"
    assert dev.rows("nack", got["id"], str(got["token"]), "--delay", "0")[0]["outcome"] == "nacked"
    [again] = dev.rows("dequeue", "mail", "--wait", "5s")
    assert again["attempt"] == 2
    stale = dev("ack", f"{got['id']}:{got['token']}")
    assert (stale.returncode, "STALE_LEASE" in stale.stderr) == (1, True)
    assert dev.rows("ack", f"{again['id']}:{again['token']}")[0]["outcome"] == "acked"
    assert dev.rows("ack", f"{again['id']}:{again['token']}")[0]["outcome"] == "already gone"
    assert dev("item", "show", made["id"]).returncode == 4
    assert dev.rows("topic", "list", "--all") == []


def test_explain_says_why_an_item_is_not_delivered_and_its_remedy_can_be_pasted(dev: Dev) -> None:
    [made] = dev.rows("enqueue", "mail", "x", "--delay", "1h")
    explained = dev("explain", made["id"])
    assert explained.returncode == 0
    assert explained.stdout.startswith(f"{made['id']} in mail: deferred")
    assert "\n  - It is deferred until " in explained.stdout
    remedy = next(line for line in explained.stdout.splitlines() if "foqs item update" in line)
    mended = dev(*remedy.partition("foqs ")[2].split())
    assert mended.returncode == 0, mended.stderr
    assert "\n  - It is ready, and the next of its topic." in dev("explain", made["id"]).stdout
    assert dev("item", "cancel", made["id"]).returncode == 0
    assert dev("explain", made["id"]).returncode == 4


def test_ctrl_c_ends_watching_with_exit_code_0(dev: Dev) -> None:
    dev.rows("enqueue", "mail", "x")
    args = [str(PROGRAM), "topic", "list", "--watch", "20ms", "-o", "json"]
    with subprocess.Popen(
        args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(FOQS_ADDRESS=dev.address)
    ) as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        for _ in range(2):
            [row] = json.loads(watching.stdout.readline())
            assert (row["topic"], row["ready"]) == ("mail", 1)
        watching.send_signal(signal.SIGINT)
        assert watching.wait(30) == 0
        assert watching.stderr.read() == ""


def test_lines_become_items_and_are_dequeued_again(dev: Dev) -> None:
    lines = [f"line {number}" for number in range(1_200)]
    assert len(dev.rows("enqueue", "lines", "--lines", stdin="\n".join(lines))) == 1_200
    assert dev.rows("peek", "lines", "--limit", "3")[2]["payload_bytes"] == len("line 2")
    got: list[str] = []
    while len(got) < len(lines):  # a dequeue returns without the items of a shard that is late
        page = dev.rows("dequeue", "lines=400", "--wait", "5s", "--ack")
        assert len(page) <= 400
        got += [row["payload"] for row in page]
    assert sorted(got) == sorted(lines)
    assert dev.rows("dequeue", "lines") == []


def test_items_survive_a_killed_host(dev: Dev) -> None:
    [made] = dev.rows("enqueue", "mail", "hello")
    dev.stop(signal.SIGKILL)
    dev.start()
    assert dev.rows("dequeue", "mail", "--wait", "5s")[0]["id"] == made["id"]


def test_dev_says_what_it_is_and_stops_cleanly(dev: Dev) -> None:
    banner = dev.out.read_text()
    for words in (str(dev.port), str(dev.http_port), str(dev.folder / "data"), "not for production", dev.address):
        assert words in banner
    assert dev.get("/livez") == dev.get("/metrics") == 200
    assert dev.stop() == 0
    assert "Traceback" not in dev.err.read_text()


def test_a_second_host_on_the_same_port_fails_with_one_sentence(dev: Dev, tmp_path: Path) -> None:
    done = foqs("dev", "--data", str(tmp_path / "other"), "--port", str(dev.port))
    assert done.returncode == 2
    assert done.stderr.startswith(f"Error: Port {dev.port} on 127.0.0.1 is in use")
    assert len(done.stderr.splitlines()) == 1


def test_doctor_recognizes_the_dev_host(dev: Dev) -> None:
    done = foqs(
        "doctor",
        "-o",
        "json",
        FOQS_SERVER__PORT=str(dev.port),
        FOQS_SERVER__HTTP_PORT=str(dev.http_port),
        FOQS_STORE__URL=f"sqlite:{dev.folder}/data",
    )
    found = {row["check"]: row for row in json.loads(done.stdout)}
    assert done.returncode == 0, found
    assert "served by FOQS" in found["Calls"]["found"]
    assert "served by FOQS" in found["HTTP"]["found"]


def test_doctor_finds_no_problem_with_the_host_at_its_address(dev: Dev) -> None:
    done = dev("doctor", "-o", "json")
    assert done.returncode == 0, done.stdout
    assert {row["check"]: row["state"] for row in json.loads(done.stdout)} == {
        "Cluster": "ok",
        "Cluster hosts": "ok",
        "Cluster shards": "ok",
    }


def test_an_unreachable_host_is_exit_code_3() -> None:
    port = free_port()
    done = foqs("topic", "list", "--address", f"foqs://127.0.0.1:{port}", "--timeout", "2s")
    assert (done.returncode, done.stdout) == (3, "")
    waiting, error = done.stderr.splitlines()
    assert waiting == f"waiting for a host at foqs://127.0.0.1:{port}"
    assert "foqs dev" in error


def test_config_default_is_accepted_by_config_check(tmp_path: Path) -> None:
    file = tmp_path / "foqs.toml"
    file.write_text(foqs("config", "default").stdout)
    assert foqs("config", "check", str(file)).returncode == 0
    file.write_text("[server]\nprot = 1\n")
    wrong = foqs("host", "--config", str(file))
    assert wrong.returncode == 2
    assert len(wrong.stderr.splitlines()) == 1


@pytest.mark.mysql
def test_doctor_checks_the_durability_of_a_database(tmp_path: Path) -> None:
    database = MariaDb()
    try:
        database.start()
        url = f"mysql://root@127.0.0.1:{database.port}/{database.database()}"

        def store() -> dict[str, Any]:
            done = foqs("doctor", "-o", "json", FOQS_STORE__URL=url, cwd=tmp_path)
            [row] = [row for row in json.loads(done.stdout) if row["check"] == "Store"]
            found: dict[str, Any] = row
            return found

        assert store()["state"] == "ok"
        database.query("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
        weak = store()
        assert weak["state"] == "bad"
        assert "innodb_flush_log_at_trx_commit" in weak["found"]
        assert weak["remedy"]
    finally:
        database.remove()
