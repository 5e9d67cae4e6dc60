"""Tests of the configuration of a host in a cluster: its values, and one-line errors with file and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from foqs.options.config import Config, ConfigError, load

CLUSTER = '[cluster]\nzookeeper = "zk1:2181,[::1]:2181"\n'
MAIN = '[databases.main]\nurl = "mysql://foqs@db1:3306/foqs"\n'


def write(folder: Path, text: str) -> Path:
    file = folder / "foqs.toml"
    file.write_text(text)
    return file


def test_configuration_of_a_cluster_host_has_name_ensemble_and_databases(tmp_path: Path) -> None:
    text = f"""
[server]
name = "host1"
advertise = "host1.example:7411"
capacity = 2
[cluster]
zookeeper = "zk1:2181,zk2:2181"
root = "/foqs/test"
{MAIN}
[databases.second-1]
url = "sqlite:/tmp/second"
"""
    config = load(write(tmp_path, text))
    assert (config.server.name, config.server.capacity) == ("host1", 2)
    assert [config.databases[name].parsed_url.kind for name in ("main", "second-1")] == ["mysql", "sqlite"]
    again = tmp_path / "again.toml"
    again.write_text(config.to_toml())
    assert load(again) == config


def test_databases_and_cluster_can_be_set_by_environment() -> None:
    config = load(None, {"FOQS_CLUSTER__ZOOKEEPER": "z:1", "FOQS_DATABASES__MAIN__URL": "mysql://u@h/d"})
    assert config.databases["main"].parsed_url.database == "d"
    with pytest.raises(ConfigError, match="FOQS_DATABASES__MAIN__PORT"):
        load(None, {"FOQS_DATABASES__MAIN__PORT": "1"})


def test_single_host_needs_no_cluster_options() -> None:
    assert Config().cluster.zookeeper == ""


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        (CLUSTER, "databases", "needs a database"),
        ('[cluster]\nzookeeper = "zk1"', "cluster.zookeeper", "HOST:PORT"),
        ('[cluster]\nzookeeper = "zk1:2181,"', "cluster.zookeeper", "HOST:PORT"),
        ('[cluster]\nzookeeper = "zk1:99999"', "cluster.zookeeper", "HOST:PORT"),
        ('[cluster]\nroot = "foqs"', "cluster.root", "not a path"),
        ('[cluster]\nroot = "/"', "cluster.root", "not a path"),
        ('[cluster]\nroot = "/a/../b"', "cluster.root", "not a path"),
        ("[cluster]\nsession_timeout_ms = 10", "cluster.session_timeout_ms", "3000"),
        ("[cluster]\nzookeper = 1", "cluster.zookeper", "did you mean cluster.zookeeper?"),
        ("[databases.main]", "databases.main.url", "no URL"),
        ('[databases.main]\nurl = "postgres://u@h/d"', "databases.main.url", "none of the known schemes"),
        ('[databases.main]\nurl = "mysql://u:hunter2@h/d"', "databases.main.url", "password"),
        ('[databases.main]\nurl = "memory:"', "databases.main.url", "cannot reach"),
        ('[databases."a b"]\nurl = "mysql://u@h/d"', "databases.'a b'", "letters"),
        (
            f'{MAIN}servers = "a=db1:3306,b=db2:3306"\npromoter_user = "foqs"',
            "databases.main.promoter_user",
            "hosts use this account too",
        ),
        (
            f'{MAIN}servers = "a=db1:3306,b=db2:3306"\npromoter_user = "p"\ntls = "verify_identity"',
            "databases.main.replica_tls_ca_file",
            "no CA for the certificates of each other",
        ),
        (
            f'{MAIN}tls = "required"\nreplica_tls_ca_file = "/etc/ca.pem"',
            "databases.main.replica_tls_ca_file",
            "the servers check no certificate",
        ),
        (f"{MAIN}max_lag_ms = 2_999", "databases.main.max_lag_ms", "3000"),
        ("[databases.main]\nurll = 1", "databases.main.urll", "did you mean databases.main.url?"),
        ("[databases]\nmain = 1", "databases.main", "section"),
        ("databases = 1", "databases", "section"),
        ('[server]\nname = "a b"', "server.name", "letters"),
        ("[server]\nname = '<script>'", "server.name", "the name of a host has only letters, digits, -, _, . and :"),
        ("[server]\nname = 'a\"onclick'", "server.name", "the name of a host has only letters, digits, -, _, . and :"),
        ("[server]\nadvertise = '</td><img src=x>:7411'", "server.advertise", "is not HOST:PORT"),
        ('[server]\nadvertise = "host1"', "server.advertise", "HOST:PORT"),
        ("[server]\ncapacity = 0", "server.capacity", "1"),
        (f'[server]\nhost = "0.0.0.0"\ninsecure_listen = true\n{CLUSTER}{MAIN}', "server.advertise", "cannot call"),
    ],
)
def test_wrong_option_is_one_line_with_file_and_key(tmp_path: Path, text: str, key: str, words: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load(file)
    line = str(caught.value)
    assert caught.value.key == key
    assert words in line
    assert "\n" not in line
    assert "hunter2" not in line
    assert line.startswith(f"{file}: ")
