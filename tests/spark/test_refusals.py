"""Tests the errors of a job: one sentence on the driver, with the remedy and without secrets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType, _parse_datatype_string

from foqs_client import SyncClient
from foqs_client.spark.item_columns import SinkError
from foqs_client.spark.job_error import SourceError
from foqs_client.spark.source import FoqsDataSource
from tests.support.certificates import secret_file
from tests.support.ports import free_port
from tests.support.processes import RestartableHost

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(240)]

BOSS, CLERK = "secret-of-the-boss", "secret-of-a-clerk"
SCHEMA = StructType().add("topic", "string").add("payload", "string")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestartableHost]:
    """Yield a host with authentication. The principal `clerk` has no grants."""
    folder = tmp_path_factory.mktemp("guarded")
    options = {
        "auth.enabled": True,
        "auth.principals.boss.token_file": str(secret_file(folder / "boss", BOSS.encode())),
        "auth.principals.boss.admin": True,
        "auth.principals.clerk.token_file": str(secret_file(folder / "clerk", CLERK.encode())),
    }
    with RestartableHost(folder / "host", "memory:", options) as host:
        host.start()
        yield host


@pytest.fixture
def token_file(host: RestartableHost) -> str:
    return str(host.folder.parent / "boss")


def refusal(options: Mapping[str, str], schema: StructType = SCHEMA, *, overwrite: bool = False) -> str:
    """Return the error of the driver before any task starts."""
    with pytest.raises(SinkError) as raised:
        FoqsDataSource(dict(options)).writer(schema, overwrite)
    return str(raised.value)


def test_only_append_mode_is_accepted() -> None:
    assert refusal({"url": "foqs://one"}, overwrite=True) == (
        'a queue cannot be overwritten: write with .mode("append")'
    )


def test_options_and_columns_are_checked_before_any_call() -> None:
    assert refusal({"url": "foqs://one", "batchsize": "1"}).startswith("unknown options: batchsize; known are url,")
    frame = StructType().add("topic", "string").add("value", "string")
    assert refusal({"url": "foqs://one"}, frame).startswith("the frame has columns that the sink does not know: value")


def stream_refusal(options: Mapping[str, str], schema: StructType = SCHEMA, *, overwrite: bool = False) -> str:
    """Return the error of the driver before any task of a stream starts."""
    with pytest.raises(SinkError) as raised:
        FoqsDataSource(dict(options)).streamWriter(schema, overwrite)
    return str(raised.value)


def test_stream_is_refused_on_the_driver_like_a_write(
    host: RestartableHost, token_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = {"url": host.address}
    assert stream_refusal(url, overwrite=True).endswith('.outputMode("append")')
    frame = StructType().add("topic", "string").add("value", "string")
    assert stream_refusal(url, frame).startswith("the frame has columns that the sink does not know: value")
    assert stream_refusal(url).startswith("the hosts refuse this write: UNAUTHENTICATED")
    assert "PERMISSION_DENIED" in stream_refusal({**url, "token": CLERK})
    boss = {**url, "token_file": token_file}
    assert "NAMESPACE_NOT_FOUND" in stream_refusal({**boss, "namespace": "nope"})
    assert stream_refusal(boss).endswith("run foqs namespace update default --key-window 24h")
    assert FoqsDataSource({**boss, "replay_window_ms": "600000"}).streamWriter(SCHEMA, False) is not None
    monkeypatch.setattr("foqs_client.spark.environment.find_spec", lambda name: None if name == "pyarrow" else 1)
    assert "has no pyarrow" in stream_refusal(boss)
    monkeypatch.delattr("pyspark.sql.datasource.DataSourceStreamArrowWriter")
    assert stream_refusal(boss).startswith("df.writeStream needs PySpark 4.1 or later")


def test_principal_that_may_only_enqueue_may_start_a_stream(host: RestartableHost, token_file: str) -> None:
    with SyncClient(host.address, token_file=token_file) as client:
        client.set_grant("clerk", ["enqueue"])
        try:
            options = {"url": host.address, "token": CLERK, "replay_window_ms": "600000"}
            assert FoqsDataSource(options).streamWriter(SCHEMA, False) is not None
        finally:
            client.set_grant("clerk", [])


def read_refusal(options: Mapping[str, str]) -> str:
    """Return the error of the driver before any task of a read starts."""
    source = FoqsDataSource(dict(options))
    with pytest.raises(SourceError) as raised:
        source.reader(_columns(source)).partitions()
    return str(raised.value)


def taking_refusal(options: Mapping[str, str], tmp_path: Path) -> str:
    """Return the error of the driver before any task of a stream out of the queue starts."""
    given = {"topics": "t", "staging_location": str(tmp_path / "staged"), "timeout_ms": "2000", **options}
    source = FoqsDataSource(given)
    reader = source.streamReader(_columns(source))
    try:
        with pytest.raises(SourceError) as raised:
            reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    finally:
        reader.stop()
    return str(raised.value)


def _columns(source: FoqsDataSource) -> StructType:
    return _parse_datatype_string(source.schema())  # type: ignore[return-value]


def test_read_and_stream_out_of_a_queue_need_a_token_and_a_grant(
    spark: SparkSession, host: RestartableHost, token_file: str, tmp_path: Path
) -> None:
    url, boss, clerk = {"url": host.address}, {"token_file": token_file}, {"token": CLERK}
    for refused in (read_refusal, lambda options: taking_refusal(options, tmp_path)):
        assert refused(url).startswith("the hosts refuse this read: UNAUTHENTICATED")
        assert "PERMISSION_DENIED" in refused({**url, **clerk})
        assert "NAMESPACE_NOT_FOUND" in refused({**url, **boss, "namespace": "nope"})
    with SyncClient(host.address, token_file=token_file) as client:
        client.set_grant("clerk", ["enqueue"])
        try:
            assert "'clerk' needs the grant CONSUME or ADMIN" in read_refusal({**url, **clerk})
            assert "'clerk' needs the grant CONSUME" in taking_refusal({**url, **clerk}, tmp_path)
            client.set_grant("clerk", ["consume"])
            source = FoqsDataSource({**url, **clerk})
            assert source.reader(_columns(source)).partitions()
        finally:
            client.set_grant("clerk", [])


def test_python_without_pyarrow_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foqs_client.spark.environment.find_spec", lambda name: None if name == "pyarrow" else 1)
    message = refusal({"url": "foqs://one"})
    assert "has no pyarrow" in message
    assert "PYSPARK_PYTHON" in message


def test_unreachable_hosts_are_named() -> None:
    message = refusal({"url": f"foqs://127.0.0.1:{free_port()}", "timeout_ms": "1000"})
    assert message.startswith("no host can be reached: no connection to 127.0.0.1:")
    assert "connection refused; is the host running there?" in message


def test_missing_namespace_is_named(host: RestartableHost, token_file: str) -> None:
    message = refusal({"url": host.address, "token_file": token_file, "namespace": "nope"})
    assert message.startswith("the hosts refuse this write: NAMESPACE_NOT_FOUND")
    assert "'nope'; create it with createNamespace (foqs namespace create)" in message


def test_missing_or_wrong_token_or_missing_grant_is_refused(
    host: RestartableHost, token_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = {"url": host.address}
    assert refusal(url).startswith("the hosts refuse this write: UNAUTHENTICATED")
    wrong = refusal({**url, "token": "hidden-and-wrong"})
    assert wrong.startswith("the hosts refuse this write: UNAUTHENTICATED")
    assert "hidden" not in wrong
    assert "PERMISSION_DENIED" in refusal({**url, "token": CLERK})
    assert "missing cannot be read" in refusal({**url, "token_file": "missing"})
    monkeypatch.setenv("FOQS_TOKEN", CLERK)
    assert "PERMISSION_DENIED" in refusal(url)
    monkeypatch.setenv("FOQS_TOKEN_FILE", token_file)
    assert FoqsDataSource(url).writer(SCHEMA, False) is not None


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("'t' AS topic, repeat('x', 10241) AS payload", "the column payload of a row was refused: LIMIT_EXCEEDED"),
        ("if(id < 0, 't', null) AS topic", "the column topic of a row is null"),
        ("'t' AS topic, 3000000000 AS priority", "the column priority of a row is 3000000000; it must be from"),
        ("'' AS topic", "the column topic of a row was refused: INVALID_ARGUMENT"),
        ("'t' AS topic, 'nope' AS namespace", "the namespace 'nope' accepted none of its rows: NAMESPACE_NOT_FOUND"),
    ],
)
def test_bad_row_ends_the_job_with_partition_column_and_reason(
    spark: SparkSession, host: RestartableHost, token_file: str, row: str, message: str
) -> None:
    frame = spark.sql(f"SELECT {row} FROM range(0, 1, 1, 1)")
    writer = frame.write.format("foqs").option("url", host.address).option("token_file", token_file)
    with pytest.raises(PythonException) as raised:
        writer.mode("append").save()
    shown = str(raised.value).strip()
    assert f"SinkError: partition 0: {message}" in shown.splitlines()[-1]
    assert "Traceback" not in shown, "more than the sentence is shown"


def test_driver_reports_why_a_write_cannot_begin_and_shows_no_token(
    spark: SparkSession, host: RestartableHost, capfd: pytest.CaptureFixture[str]
) -> None:
    writer = spark.sql("SELECT 't' AS topic, 'x' AS payload").write.format("foqs").option("url", host.address)
    writer.option("token", BOSS).mode("append").save()
    with pytest.raises(AnalysisException) as raised:
        writer.option("namespace", "nope").mode("append").save()
    [line, end] = str(raised.value).splitlines()
    assert "SinkError: the hosts refuse this write: NAMESPACE_NOT_FOUND" in line
    assert end.strip() == "SQLSTATE: 38000"
    assert BOSS not in str(raised.value)
    printed = "".join(capfd.readouterr())
    assert BOSS not in printed
    events = "".join(file.read_text() for file in _event_logs(spark))
    assert "foqs" in events
    assert BOSS not in events


def _event_logs(spark: SparkSession) -> list[Path]:
    folder = Path(str(spark.conf.get("spark.eventLog.dir")).removeprefix("file://"))
    return [file for file in folder.rglob("*") if file.is_file()]
