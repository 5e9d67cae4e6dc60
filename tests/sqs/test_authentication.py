"""Signed requests through boto3: principals, grants, changed secrets, TLS."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from botocore import UNSIGNED
from botocore.exceptions import ClientError

from foqs.access.keyring import signing_secret
from foqs.sqs import envelope, origin
from foqs_client import Client, Item, PermissionDenied, Tls
from tests.support.aio import run
from tests.support.certificates import Authority, secret_file
from tests.support.poll import until
from tests.support.processes import PROGRAM
from tests.support.sqs_host import SqsHost, sqs_client

pytestmark = [pytest.mark.process]

BOSS, MAILER, WORKER, LATER = (f"a-secret-of-the-{name}" for name in ("boss", "mailer", "worker", "later"))
ONCE: Final[dict[str, Any]] = {"retries": {"total_max_attempts": 1}}


class Guarded(SqsHost):
    """A host with TLS, the administrator `boss`, and `mailer` and `worker`, which may only send or receive."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.authority = Authority(folder / "ca")
        files = self.authority.sign("host")
        self.tokens = {
            name: secret_file(folder / name, token.encode())
            for name, token in (("boss", BOSS), ("mailer", MAILER), ("worker", WORKER))
        }
        super().__init__(
            folder / "host",
            {
                "auth.enabled": True,
                "auth.principals.boss.admin": True,
                "server.tls_cert_file": str(files.cert),
                "server.tls_key_file": str(files.key),
                **{f"auth.principals.{name}.token_file": str(file) for name, file in self.tokens.items()},
            },
        )

    @property
    def endpoint(self) -> str:
        return super().endpoint.replace("http://", "https://")

    def client(self, name: str, token: str) -> Any:
        return sqs_client(self.endpoint, name, signing_secret(token.encode()), self.authority.file, **ONCE)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with Guarded(tmp_path_factory.mktemp("guarded")) as host:
        host.start()

        async def grant() -> None:
            address = f"foqss://127.0.0.1:{host.port}"
            async with Client(address, token=BOSS, tls=Tls(ca_file=str(host.authority.file))) as client:
                await client.set_grant("mailer", ["enqueue"])
                await client.set_grant("worker", ["consume"])

        run(grant())
        yield host


@pytest.fixture(scope="module")
def mail(guarded: Guarded) -> str:
    return str(guarded.client("boss", BOSS).create_queue(QueueName="mail")["QueueUrl"])


def code(call: Any, **arguments: Any) -> str:
    with pytest.raises(ClientError) as refused:
        call(**arguments)
    return str(refused.value.response["Error"]["Code"])


def test_grants_decide(guarded: Guarded, mail: str) -> None:
    mailer, worker = guarded.client("mailer", MAILER), guarded.client("worker", WORKER)
    assert mail.startswith("https://")
    assert mailer.get_queue_url(QueueName="mail")["QueueUrl"] == mail
    mailer.send_message(QueueUrl=mail, MessageBody="x")
    assert code(mailer.receive_message, QueueUrl=mail) == "AccessDenied"
    assert code(worker.send_message, QueueUrl=mail, MessageBody="x") == "AccessDenied"
    (message,) = worker.receive_message(QueueUrl=mail, WaitTimeSeconds=10, AttributeNames=["All"])["Messages"]
    assert message["Attributes"]["SenderId"] == "mailer"
    assert code(mailer.delete_message, QueueUrl=mail, ReceiptHandle=message["ReceiptHandle"]) == "AccessDenied"
    worker.delete_message(QueueUrl=mail, ReceiptHandle=message["ReceiptHandle"])
    for client in (mailer, worker):
        assert code(client.create_queue, QueueName="other") == "AccessDenied"
        assert code(client.delete_queue, QueueUrl=mail) == "AccessDenied"
    assert code(mailer.get_queue_attributes, QueueUrl=mail, AttributeNames=["All"]) == "AccessDenied"
    arn = worker.get_queue_attributes(QueueUrl=mail, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    assert worker.list_message_move_tasks(SourceArn=arn)["Results"] == []
    for client in (mailer, worker):
        assert code(client.start_message_move_task, SourceArn=arn) == "AccessDenied"


def test_wrong_signatures_have_the_errors_of_aws(guarded: Guarded, mail: str) -> None:
    assert code(guarded.client("boss", MAILER).list_queues) == "SignatureDoesNotMatch"
    assert code(guarded.client("nobody", BOSS).list_queues) == "InvalidClientTokenId"
    unsigned = sqs_client(guarded.endpoint, verify=guarded.authority.file, signature_version=UNSIGNED, **ONCE)
    assert code(unsigned.list_queues) == "MissingAuthenticationToken"


def test_a_changed_secret_is_used_after_sighup(guarded: Guarded, mail: str) -> None:
    file = guarded.tokens["worker"]
    file.write_text(f"{LATER}\n{WORKER}\n")
    guarded.signal(signal.SIGHUP)
    later = guarded.client("worker", LATER)
    until(lambda: accepts(later), "the new secret is accepted")
    assert accepts(guarded.client("worker", WORKER)), "both are valid while a secret is changed"
    file.write_text(f"{LATER}\n")
    guarded.signal(signal.SIGHUP)
    until(lambda: not accepts(guarded.client("worker", WORKER)), "the old secret is refused")
    assert accepts(later)
    file.write_text(f"{WORKER}\n")
    guarded.signal(signal.SIGHUP)
    until(lambda: accepts(guarded.client("worker", WORKER)), "the first secret is accepted again, for other tests")


def accepts(client: Any) -> bool:
    try:
        client.list_queues()
    except client.exceptions.ClientError:
        return False
    return True


def test_the_command_shows_what_the_host_accepts(guarded: Guarded, mail: str) -> None:
    command = [str(PROGRAM), "sqs", "credentials", "mailer", "--config", str(guarded.config)]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    values = dict(line.split("=", 1) for line in shown.splitlines())
    client = sqs_client(
        guarded.endpoint, values["AWS_ACCESS_KEY_ID"], values["AWS_SECRET_ACCESS_KEY"], guarded.authority.file, **ONCE
    )
    assert client.list_queues()["QueueUrls"] == [mail]


def test_producer_over_thrift_cannot_name_another_sender(guarded: Guarded) -> None:
    """Consumers believe SenderId, receive counts and the source of a dead letter."""
    forged = Item("forged", envelope.encode(envelope.Message("pay", sender="boss")))
    letter = Item("forged", b"x", metadata=origin.encode(origin.Origin("forged", "payroll", "id", 9, 7)))

    async def enqueue(token: str, item: Item) -> None:
        address = f"foqss://127.0.0.1:{guarded.port}"
        async with Client(address, token=token, tls=Tls(ca_file=str(guarded.authority.file))) as client:
            [result] = await client.enqueue([item])
            result.require()

    for item in (forged, letter):
        with pytest.raises(PermissionDenied, match="SQS"):
            run(enqueue(MAILER, item))
    run(enqueue(MAILER, Item("forged", b"plain")))
    run(enqueue(BOSS, forged))
