"""Tests of the configuration: its file, its sources, and its one-line errors."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic.fields import FieldInfo

import foqs
from foqs.options.config import Config, ConfigError, load
from foqs.options.options import Options, StoreUrl, parse_store_url
from foqs.options.renames import RENAMED
from foqs.telemetry.metric_table import METRICS

AUTH = '[auth]\nenabled = true\n[auth.principals.a]\ntoken_file = "no-such-file"'
DEFAULT_FILE = Path(__file__).parents[3] / "configs" / "foqs.toml"


def every_option() -> Iterator[tuple[str, FieldInfo]]:
    config = Config()
    for section in Config.model_fields:
        options = getattr(config, section)
        if isinstance(options, Options):
            for key, field in type(options).model_fields.items():
                yield f"{section}.{key}", field


def test_shipped_file_is_generated_from_the_code() -> None:
    assert DEFAULT_FILE.read_text() == Config().to_toml()


def test_shipped_file_holds_the_defaults() -> None:
    assert load(DEFAULT_FILE) == Config() == load()


def test_shipped_file_sets_every_option() -> None:
    raw = tomllib.loads(DEFAULT_FILE.read_text())
    assert {f"{section}.{key}" for section in raw for key in raw[section]} == {name for name, _ in every_option()}


def test_every_option_has_unit_reason_and_range() -> None:
    for name, field in every_option():
        assert isinstance(field.json_schema_extra, dict), name
        unit = field.json_schema_extra["unit"]
        assert unit, name
        assert (field.description or "").endswith("."), name
        if field.annotation is int:
            assert len(field.metadata) == 2, f"{name}: a number has a least and a greatest value"
        for ending, wanted in (("_ms", "milliseconds"), ("_bytes", "bytes"), ("_items", "items")):
            if ending in name.split(".")[1] and field.annotation is int:
                assert unit == wanted, name


def test_every_metric_that_an_option_names_exists() -> None:
    named = {word for _, field in every_option() for word in re.findall(r"foqs_[a-z_]+", field.description or "")}
    assert named
    assert {name.removesuffix("_total") for name in named} <= {metric.name for metric in METRICS}


@pytest.mark.once
def test_every_option_is_read_somewhere_in_the_host() -> None:
    trees = [ast.parse(path.read_text()) for path in Path(foqs.__file__).parent.rglob("*.py")]
    read = {node.attr for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert {name.split(".")[1] for name, _ in every_option()} - read == set()


def test_configuration_survives_writing_and_reading(tmp_path: Path) -> None:
    text = """
[server]
port = 7500
region = "a\\"b\\\\c"
[namespace]
lease_ms_default = 5_000
[auth.principals.orders]
token_file = "/run/secrets/orders"
[auth.principals."odd name"]
admin = true
"""
    config = load(write(tmp_path, text))
    again = load(write(tmp_path, config.to_toml()))
    assert again == config
    assert config.namespace.lease_ms_default == 5_000
    assert config.auth.principals["orders"].token_file == "/run/secrets/orders"
    assert config.auth.principals["odd name"].admin


def test_configuration_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Config().server.port = 1


# ------------------------------------------------------------------- sources


def test_environment_overrides_the_file_and_the_command_line_overrides_both(tmp_path: Path) -> None:
    file = write(tmp_path, "[server]\nport = 1\nhttp_port = 2\nstop_timeout_ms = 3\n")
    environment = {"FOQS_SERVER__PORT": "10", "foqs_server__http_port": "20", "PATH": "/bin"}
    server = load(file, environment, {"server.port": 100}).server
    assert (server.port, server.http_port, server.stop_timeout_ms) == (100, 20, 3)


def test_environment_variables_hold_text_numbers_and_booleans() -> None:
    environment = {
        "FOQS_STORE__URL": "sqlite:/tmp/1",
        "FOQS_STORE__UNSAFE_DURABILITY": "true",
        "FOQS_SERVER__REGION": "42",
        "FOQS_RPC__FRAME_BYTES_MAX": "33_554_432",
        "FOQS_ADDRESS": "foqs://elsewhere",
        "FOQS_PURE": "1",
        "FOQS_CONFIG": "x",
        "FOQS_NAMESPACE": "y",
        "FOQS_CLIENT_REGION": "west",
        "FOQS_OUTBOX_DATABASE": "sqlite:///shop.db",
        "FOQS_OUTBOX_PREFIX": "shop_",
        "FOQS_TOKEN_FILE": "of-the-command-line",
        "FOQS_CA_FILE": "of-the-command-line",
        "FOQS_CERT_FILE": "of-the-command-line",
        "FOQS_KEY_FILE": "of-the-command-line",
        "FOQS_AUTH__PRINCIPALS__ORDERS__ADMIN": "true",
    }
    config = load(None, environment)
    assert config.store.url == "sqlite:/tmp/1"
    assert config.store.unsafe_durability is True
    assert config.server.region == "42"
    assert config.rpc.frame_bytes_max == 33_554_432
    assert config.auth.principals["orders"].admin is True


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("FOQS_PORT", "7411"),
        ("FOQS_SERVER", "x"),
        ("FOQS_SERVER__", "x"),
        ("FOQS_SERVER__PORTS", "1"),
        ("FOQS_SERVER__PORT__X", "1"),
        ("FOQS_NAMESPACES__A", "1"),
        ("FOQS_", "1"),
        ("FOQS_SERVER__PORT", "eighty"),
        ("FOQS_AUTH__PRINCIPALS__A__TOKEN", "x"),
        ("FOQS_AUTH__PRINCIPALS", "x"),
        ("FOQS_SERVER__PORT", "70000"),
        ("FOQS_STORE__UNSAFE_DURABILITY", "1"),
    ],
)
def test_wrong_variable_is_named(variable: str, value: str) -> None:
    error = refused(environment={variable: value})
    assert variable in str(error)


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("[server]\nprot = 1", "server.prot", "no such option"),
        ("[sever]\nport = 1", "sever", "no such section"),
        ("port = 1", "port", "no such section"),
        ("server = 1", "server", "section"),
        ("namespace = 1", "namespace", "section"),
        ("[namespaces.a]\nlease_ms_default = 1", "namespaces", "foqs namespace create"),
        ('[server]\nport = "7411"', "server.port", "integer"),
        ("[server]\nport = 1.0", "server.port", "integer"),
        ("[server]\nport = true", "server.port", "integer"),
        ("[server]\nhost = 1", "server.host", "string"),
        ("[server]\nport = 65536", "server.port", "less than or equal to 65535"),
        ("[server]\nport = -1", "server.port", "greater than or equal to 0"),
        ("[store]\nshards = 0", "store.shards", "greater than or equal to 1"),
        ('[store]\nunsafe_durability = "yes"', "store.unsafe_durability", "boolean"),
        ('[log]\nlevel = "loud"', "log.level", "'debug'"),
        ('[log]\nformat = "xml"', "log.format", "'json'"),
        ("[server]\nport = 7412", "server.http_port", "server.port too"),
        ('[server]\nhost = "0.0.0.0"', "server.host", "--insecure-listen"),
        ('[server]\nhost = ""', "server.host", "every address"),
        ('[server]\nconsole = true\nconsole_host = "0.0.0.0"', "server.console_host", "without authentication"),
        (f'[server]\nconsole = true\nconsole_host = "0.0.0.0"\n{AUTH}', "server.console_host", "tls_cert_file"),
        ('[server]\nconsole = true\nconsole_url = "queue.example"', "server.console_url", "is not a URL"),
        (
            '[server]\nconsole = true\nconsole_url = "https://q.example/"',
            "server.console_url",
            "without authentication",
        ),
        (
            f'[server]\nconsole = true\nconsole_url = "http://q.example/"\n{AUTH}',
            "server.console_url",
            "write https://",
        ),
        ('[server]\nhost = "example.org"', "server.host", "--insecure-listen"),
        (
            "[calls]\nitems_per_call_max = 3_000\n[shard]\nqueue_items_max = 2_000",
            "calls.items_per_call_max",
            "queue_items_max",
        ),
        ("[namespace]\nlease_ms_default = 50_000_000", "namespace.lease_ms_default", "lease_ms_max"),
        ("[namespace]\nbackoff_ms_max = 1", "namespace.backoff_ms_min", "backoff_ms_max"),
        (
            "[rpc]\nframe_bytes_max = 65_536\n[namespace]\npayload_bytes_max = 65_536",
            "rpc.frame_bytes_max",
            "can take",
        ),
        ("[namespace]\nkey_window_ms = 120_000", "namespace.key_window_ms", "enqueue twice"),
        ('[server]\nhttp_host = "0.0.0.0"', "server.http_host", "metrics"),
        (
            '[server]\nhost = "0.0.0.0"\ntls_cert_file = "c"\ntls_key_file = "k"',
            "server.host",
            "auth.enabled is not set",
        ),
        (f'[server]\nhost = "0.0.0.0"\n{AUTH}', "server.host", "server.tls_cert_file is not set"),
        ('[server]\ntls_cert_file = "c"', "server.tls_key_file", "go together"),
        ('[server]\ntls_key_file = "k"', "server.tls_cert_file", "go together"),
        (
            '[server]\ntls_cert_file = "c"\ntls_key_file = "k"\ntls_client_ca_file = "a"',
            "server.tls_client_ca_file",
            "auth.enabled",
        ),
        (f'[server]\ntls_client_ca_file = "a"\n{AUTH}', "server.tls_client_ca_file", "server.tls_cert_file"),
        ("[auth]\nenabled = true", "auth.principals", "nobody could call"),
        ("[auth]\nenabled = true\n[auth.principals.a]", "auth.principals.a.token_file", "a has no way to authenticate"),
        ("[auth.principals.a]\ntoken = 1", "auth.principals.a.token", "no such option"),
        ("[auth.principals.a]\nadmin = 1", "auth.principals.a.admin", "boolean"),
        ("[auth]\nprincipals = 1", "auth.principals", "section"),
        ('[auth.principals.""]', "auth.principals.''", "printable"),
        ('[auth.principals."a\\u0007"]', "auth.principals.'a\\x07'", "printable"),
        ('[store]\nurl = "postgres://u@h/d"', "store.url", "none of the known schemes"),
        ('[store]\nurl = "sqlite:"', "store.url", "no folder"),
        ('[store]\nurl = "mysql://h/d"', "store.url", "lacks a user"),
        ('[store]\nurl = "mysql://u@h"', "store.url", "lacks a user"),
        ('[store]\nurl = "mysql://u@h:99999/d"', "store.url", "cannot be read"),
        ('[store]\nurl = "mysql://u@h/d?x=1"', "store.url", "after the database"),
        ('[store]\nurl = "mysql://u@h/d?socket=sock"', "store.url", "after the database"),
        ('[store]\nurl = "mysql://u@h/d?socket=/s&x=1"', "store.url", "after the database"),
        ('[store]\nurl = "mysql://u:hunter2@h/d"', "store.url", "password_file"),
    ],
)
def test_wrong_option_is_named_with_its_remedy(tmp_path: Path, text: str, key: str, words: str) -> None:
    file = write(tmp_path, text)
    error = refused(file)
    assert error.key == key
    assert words in str(error)
    assert error.remedy
    assert "hunter2" not in str(error)
    assert str(error).startswith(f"{file}: ")


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("[server]\nprot = 1", "server.port"),
        ("[sever]\nport = 1", "server"),
        ("[server]\nshards = 1", "store.shards"),
        ("[auth.principals.a]\ntoken_fil = 'x'", "auth.principals.a.token_file"),
    ],
)
def test_unknown_key_is_refused_with_the_key_that_it_resembles(tmp_path: Path, text: str, nearest: str) -> None:
    assert refused(write(tmp_path, text)).remedy == f"did you mean {nearest}?"
    assert refused(write(tmp_path, "[zzz]\nqqq = 1")).remedy == "see foqs config default for all of them"


def test_unknown_variable_is_refused_with_the_variable_that_it_resembles() -> None:
    assert refused(environment={"FOQS_SERVER__PROT": "1"}).remedy == "did you mean FOQS_SERVER__PORT?"
    assert "FOQS_SECTION__OPTION" in refused(environment={"FOQS_X": "1"}).remedy


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[server\n", "(at line 1, column 8)"),
        (b"port = 1\nport = 2\n", "not TOML"),
        (b"\xff\xfe", "not UTF-8"),
        (b"#" * ((1 << 20) + 1), "longer than"),
    ],
)
def test_file_that_is_not_a_configuration_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "foqs.toml"
    file.write_bytes(content)
    error = refused(file)
    assert str(error).startswith(f"{file}: ")
    assert words in str(error)


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert "no such file" in str(refused(tmp_path / "absent.toml"))
    assert "cannot be read" in str(refused(tmp_path))


def test_section_with_a_plain_value_is_refused(tmp_path: Path) -> None:
    error = refused(write(tmp_path, "server = 1"), {"FOQS_SERVER__PORT": "1"})
    assert "section" in str(error)


def test_host_listens_beyond_loopback_with_insecure_listen() -> None:
    config = load(None, {}, {"server.host": "0.0.0.0", "server.insecure_listen": True})
    assert config.server.host == "0.0.0.0"
    for host in ("localhost", "127.0.0.2", "::1"):
        assert load(None, {}, {"server.host": host}).server.host == host


# ------------------------------------------------------------------------ SQS


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[server]\nsqs_port = 7411", "7411 is server.port too"),
        ("[server]\nsqs_port = 7412", "7412 is server.http_port too"),
        ("[sqs]\naccounts = {}", "there is no account"),
        ('[sqs]\naccounts = {"12" = "default"}', "'12' is not an account"),
        ('[sqs]\naccounts = {":000000000000" = "default"}', "':000000000000' is not an account"),
        ('[sqs]\naccounts = {"US-WEST-2:000000000000" = "west"}', "is not an account"),
        ('[sqs]\naccounts = {"us-west-2:12" = "west"}', 'for an account in one region "us-west-2:000000000000"'),
        (f'[sqs]\naccounts = {{"{"r" * 65}:000000000000" = "west"}}', "is not an account"),
        ('[sqs]\naccounts = {"000000000000" = ""}', "not the name of a namespace"),
    ],
)
def test_wrong_options_of_the_sqs_port_are_refused(tmp_path: Path, text: str, says: str) -> None:
    assert says in str(refused(write(tmp_path, text)))


def test_an_account_has_a_namespace_or_one_for_each_region(tmp_path: Path) -> None:
    accounts = {"000000000000": "default", "us-west-2:000000000000": "west", "eu-west-1:111111111111": "west"}
    lines = "".join(f'"{account}" = "{namespace}"\n' for account, namespace in accounts.items())
    assert load(write(tmp_path, f"[sqs.accounts]\n{lines}")).sqs.accounts == accounts


# ------------------------------------------------------------- renamed options


def test_renamed_options_are_gone_and_their_new_names_exist() -> None:
    options = {name for name, _ in every_option()}
    for old, new in RENAMED.items():
        if old.startswith("["):
            assert old.strip("[]") not in Config.model_fields
            assert new.strip("[]") in Config.model_fields
        else:
            assert old not in options
            assert new in options


@pytest.mark.parametrize(("old", "new"), [(old, new) for old, new in RENAMED.items() if "." in old])
def test_renamed_option_is_refused_with_its_new_name(tmp_path: Path, old: str, new: str) -> None:
    section, _, name = old.partition(".")
    new_section = new.partition(".")[0]
    error = refused(write(tmp_path, f"[{new_section}]\n{name} = 1"))
    assert error.problem == "this option was renamed"
    assert error.remedy == f"write {new}"
    variable = f"FOQS_{section}__{name}".upper()
    error = refused(environment={variable: "1"})
    assert str(error) == (
        f"environment: {variable}: this option was renamed; set FOQS_{new.upper().replace('.', '__')}"
    )
    error = refused(overrides={old: 1})
    assert str(error) == f"command line: {old}: this option was renamed; write {new}"


@pytest.mark.parametrize(("old", "new"), [("wire", "rpc"), ("buffer", "row_cache")])
def test_renamed_section_is_refused_with_its_new_name(tmp_path: Path, old: str, new: str) -> None:
    file = write(tmp_path, f"[{old}]\nany = 1")
    assert str(refused(file)) == f"{file}: {old}: this section was renamed; write [{new}]"
    assert f"set FOQS_{new.upper()}__OPTION" in str(refused(environment={f"FOQS_{old.upper()}": "1"}))


def test_unrenamed_option_of_a_renamed_section_is_named_in_its_new_section() -> None:
    error = refused(environment={"FOQS_WIRE__CONNECTIONS_MAX": "1"})
    assert error.remedy == "set FOQS_RPC__CONNECTIONS_MAX"


# ----------------------------------------------------------------- URLs, paths


def test_store_urls_are_parsed() -> None:
    assert parse_store_url("memory:") == StoreUrl("memory")
    assert parse_store_url("sqlite:./x y") == StoreUrl("sqlite", path="./x y")
    assert parse_store_url("sqlite:/x") == StoreUrl("sqlite", path="/x")
    assert parse_store_url("mysql://foqs@db/queue") == StoreUrl("mysql", "", "db", 3306, "foqs", "queue")
    assert parse_store_url("mysql://u@localhost/d?socket=/run/my%20sql.sock") == StoreUrl(
        "mysql", "", "localhost", 3306, "u", "d", "/run/my sql.sock"
    )
    assert parse_store_url("mysql://a%40b@[::1]:3307/q%2Db") == StoreUrl("mysql", "", "::1", 3307, "a@b", "q-b")


def test_coordinator_file_is_beside_the_items() -> None:
    def file(**overrides: object) -> Path | None:
        return load(None, {}, {key.replace("__", "."): value for key, value in overrides.items()}).coordinator_file

    assert file() == Path("foqs-data/coordinator.json")
    assert file(store__url="sqlite:/data") == Path("/data/coordinator.json")
    assert file(store__url="mysql://u@h/d") == Path("foqs-data/coordinator.json")
    assert file(store__url="memory:") is None
    assert file(store__url="memory:", coordinator__file="/x.json") == Path("/x.json")


def write(folder: Path, text: str) -> Path:
    file = folder / "foqs.toml"
    file.write_text(text)
    return file


def refused(
    file: Path | None = None, environment: dict[str, str] | None = None, overrides: dict[str, object] | None = None
) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(file, environment, overrides)
    assert "\n" not in str(caught.value)
    return caught.value


def test_lock_files_reserve_the_data_folder_and_a_coordinator_file_elsewhere(tmp_path: Path) -> None:
    def locks(**sections: dict[str, str]) -> dict[str, str]:
        config = Config.model_validate(sections)
        return {str(lock): str(what) for lock, what in config.lock_files.items()}

    assert locks(store={"url": "sqlite:data"}) == {"data/host.lock": "data"}
    assert locks(store={"url": "sqlite:data"}, coordinator={"file": "e/c.json"}) == {
        "data/host.lock": "data",
        "e/c.json.lock": "e/c.json",
    }
    assert locks(store={"url": "mysql://u@h/d"}) == {"foqs-data/coordinator.json.lock": "foqs-data/coordinator.json"}
    assert locks(store={"url": "memory:"}) == {}


@pytest.mark.parametrize(
    ("servers", "problem"),
    [
        ("db-a:3306", "'db-a:3306' is not NAME=HOST:PORT; write a=db-a:3306,b=db-b:3306"),
        ("a=db-a", "'a=db-a' is not NAME=HOST:PORT"),
        ("a=db-a:1, a=db-b:1", "a is named twice; give each server its own name"),
    ],
)
def test_servers_of_a_database_have_a_name_and_an_address_each(servers: str, problem: str) -> None:
    options = {"databases.main.url": "mysql://u@h/d", "databases.main.servers": servers}
    with pytest.raises(ConfigError, match=re.escape(problem)):
        load(overrides=options)


def test_only_a_database_server_has_servers() -> None:
    options = {"databases.main.url": "sqlite:./x", "databases.main.servers": "a=h:1"}
    with pytest.raises(ConfigError, match=r"databases\.main\.servers: only a database of MySQL or MariaDB has servers"):
        load(overrides=options)


def test_server_is_of_one_database_only() -> None:
    options = {
        f"databases.{name}.{key}": value
        for name, servers in (("main", "a=h:1,b=h:2"), ("other", "c=h:2"))
        for key, value in (("url", "mysql://u@h/d"), ("servers", servers))
    }
    refused = r"databases\.other\.servers: c at h:2 is also a server of databases\.main; give each database servers of its own"
    with pytest.raises(ConfigError, match=refused):
        load(overrides=options)
    load(overrides=options | {"databases.other.servers": "c=h:3"})
