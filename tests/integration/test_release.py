"""A wheel installed without the checkout: the client, a host, a worker and the Spark sink run from it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.parser import Parser
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.poll import until
from tests.support.ports import free_port

ROOT: Final = Path(__file__).parents[2]
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: Final = PROJECT["optional-dependencies"]
COMPILED: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["foqs"]["compiled"]
TIMEOUT_S: Final = 60.0

IMPORT_CLIENT: Final = """
import json, sys
import foqs, foqs_client, foqs_client.consumer, foqs_contract.errors
print(json.dumps([sorted({name.partition(".")[0] for name in sys.modules}), foqs_client.__file__]))
"""

ENQUEUE: Final = """
import sys
from foqs_client import Item, SyncClient
with SyncClient(sys.argv[1]) as client:
    client.enqueue([Item("mail", b"hello")])
"""

HANDLER: Final = """
from pathlib import Path
def note(item):
    Path("handled").write_bytes(item.payload)
"""

VENDOR: Final = "foqs/console/vendor"
"""The folder of the archive with files of others that the console serves."""

SPARK: Final = """
import sys
from pyspark.sql import SparkSession
from foqs_client import SyncClient
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1").getOrCreate()
rows = spark.createDataFrame([("rows", b"a"), ("rows", b"b")], "topic string, payload binary")
rows.write.format("foqs").option("url", sys.argv[1]).mode("append").save()
spark.stop()
with SyncClient(sys.argv[1]) as client:
    found = client.dequeue({"rows": 10}, wait_ms=5_000)
    assert sorted(item.payload for item in found) == [b"a", b"b"], found
"""


@dataclass(frozen=True, slots=True)
class Installation:
    """A virtual environment with foqs from a wheel, and a folder to run in."""

    folder: Path

    @property
    def program(self) -> Path:
        return self.folder / "venv" / "bin" / "foqs"

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("HOME", "LANG", "PATH", "JAVA_HOME") if name in os.environ}
        python = str(self.program.with_name("python"))
        return kept | {"PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1"}

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(argument) for argument in arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=10 * TIMEOUT_S,  # a busy machine takes minutes to start a Spark
        )

    def python(self, code: str, *arguments: str) -> str:
        done = self.run(self.program.with_name("python"), "-c", code, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def running(self, *arguments: str) -> Iterator[None]:
        """Run `foqs` with these arguments, and assert that it stops well."""
        log = self.folder / f"{arguments[0]}.log"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [str(self.program), *arguments], cwd=self.folder, env=self.environment, stdout=stream, stderr=stream
            )
        try:
            yield
        except BaseException:
            print(log.read_text())
            process.kill()
            raise
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(TIMEOUT_S)
        assert code == 0, log.read_text()

    @contextmanager
    def host(self) -> Iterator[str]:
        port = free_port()
        address = f"foqs://127.0.0.1:{port}"
        options = ("--port", str(port), "--http-port", str(free_port()), "--data", str(self.folder / "data"))
        with self.running("dev", *options):
            until(lambda: self.run(self.program, "topic", "list", "--address", address).returncode == 0, "dev answers")
            yield address


def build(folder: Path, *options: str) -> Path:
    """Build the source archive and the plain wheel into the folder, and return the wheel.

    Args:
        options: more options of dist.py, such as `--compiled`.
    """
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "dist.py"), "--uncommitted", *options, str(folder)],
        env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel] = folder.glob("*-none-any.whl")
    return wheel


def install(folder: Path, wheel: Path) -> Installation:
    """Install the wheel alone. Its dependencies are those of this environment, but foqs is the wheel's."""
    venv.create(folder / "venv", with_pip=False)
    installation = Installation(folder)
    python = installation.program.with_name("python")
    options = ("--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", str(wheel))
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), "install", *options], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # A line of a .pth file adds a folder to the path. Python does not read the .pth files in that folder, so the
    # editable foqs of this environment is not added.
    [packages] = (folder / "venv" / "lib").glob("python3.*/site-packages")
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return installation


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return install_apart(tmp_path_factory.mktemp("installed"), wheel)


@pytest.fixture(scope="module")
def compiled_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled wheel of this Python and machine, which dist.py has built twice with the same bytes."""
    folder = tmp_path_factory.mktemp("compiled")
    build(folder, "--compiled", "--check")
    [found] = set(folder.glob("*.whl")) - set(folder.glob("*-none-any.whl"))
    return found


def install_apart(folder: Path, wheel: Path) -> Installation:
    """Install the wheel, and assert that its modules are imported, not those of the checkout."""
    found = install(folder, wheel)
    code = "import foqs, foqs_client, foqs_contract, shardmgr; print(*(m.__file__ for m in (foqs, foqs_client)))"
    for file in found.python(code).split():
        assert Path(file).is_relative_to(folder)
    return found


def requirements(wheel: Path) -> Mapping[str | None, set[str]]:
    """Return the requirements of the wheel by extra; None stands for the base install."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist") or []
    found: dict[str | None, set[str]] = {}
    for line in lines:
        extra = re.search(r"extra == '([\w-]+)'", line)
        name = re.split(r"[^\w.-]", line, maxsplit=1)[0].lower()
        found.setdefault(extra[1] if extra else None, set()).add(name)
    return found


def names(lines: list[str]) -> set[str]:
    return {re.split(r"[^\w.-]", line, maxsplit=1)[0].lower() for line in lines}


def test_a_second_build_has_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    build(tmp_path)
    for file in wheel.parent.iterdir():
        digests = {hashlib.sha256(path.read_bytes()).hexdigest() for path in (file, tmp_path / file.name)}
        assert len(digests) == 1, f"{file.name} has other bytes"


def test_each_extra_requires_what_the_project_names(wheel: Path) -> None:
    found = requirements(wheel)
    assert found[None] == {"thrift"}
    wanted = {extra: names(lines) for extra, lines in EXTRAS.items()}
    # test requires foqs[django,outbox], dev foqs[docs,test]
    wanted["test"] = wanted["test"] - {"foqs"} | wanted["outbox"] | wanted["django"]
    wanted["dev"] = wanted["dev"] - {"foqs"} | wanted["docs"] | wanted["test"]
    assert {extra: found[extra] for extra in EXTRAS} == wanted
    assert set(found) == {None, *EXTRAS}


def test_wheel_holds_the_packages_the_licence_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = archive.namelist()
    metadata = f"foqs-{PROJECT['version']}.dist-info"
    tops = {file.partition("/")[0] for file in files}
    assert tops == {"foqs", "shardmgr", "foqs_client", "foqs_contract", "pyspark_foqs", metadata}
    assert f"{metadata}/licenses/LICENSE" in files
    assert not [file for file in files if file.endswith((".so", ".pyc"))]


def test_source_archive_holds_files_of_other_projects_with_their_licences(wheel: Path) -> None:
    [archive] = wheel.parent.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        held = {member.name.partition("/")[2]: member for member in files if member.isfile()}
        scripts = [name for name in held if name.endswith((".js", ".css"))]
        texts = {name: files.extractfile(held[name]).read().decode() for name in scripts}  # type: ignore[union-attr]
        packages = json.load(files.extractfile(held[f"{VENDOR}/manifest.json"]))  # type: ignore[arg-type]
    assert "LICENSE" in held
    vendored = {f"{VENDOR}/{file}" for package in packages for file in package["files"]}
    assert vendored <= set(held)
    assert all(any(name.endswith(".LICENSE") for name in package["files"]) for package in packages)
    assert not [name for name in held if name.endswith((".jar", ".woff2", ".ttf", ".min.js")) and name not in vendored]
    of_others = {name for name, text in texts.items() if "Copyright" in text}
    assert of_others == {"docs/assets/iframe-worker.js"}
    assert "Permission is hereby granted, free of charge" in texts["docs/assets/iframe-worker.js"]


def test_importing_the_client_imports_no_package_of_an_extra(installed: Installation) -> None:
    modules, file = json.loads(installed.python(IMPORT_CLIENT))
    assert Path(file).is_relative_to(installed.folder)
    of_extras = {
        "aiohttp",
        "aiomysql",
        "click",
        "kazoo",
        "prometheus_client",
        "pybreaker",
        "pydantic",
        "pymysql",
        "rich",
    }
    assert not {*of_extras, "uvloop", "pyspark", "pyarrow", "pandas", "opentelemetry"} & set(modules)


def try_out(installed: Installation, modules: str) -> None:
    """Run a host, the client and a worker of the installation, whose modules are of this kind."""
    (installed.folder / "jobs.py").write_text(HANDLER)
    [row] = json.loads(installed.run(installed.program, "version", "-o", "json").stdout)
    assert row == {"foqs": PROJECT["version"], "modules": modules}
    with installed.host() as address:
        installed.python(ENQUEUE, address)
        with installed.running("worker", "jobs:note", "--topic", "mail", "--address", address):
            until((installed.folder / "handled").exists, "the worker handles the item")
    assert (installed.folder / "handled").read_bytes() == b"hello"


@pytest.mark.process
def test_host_client_and_worker_run_from_the_wheel(installed: Installation) -> None:
    try_out(installed, "plain Python")


@pytest.mark.process
@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_host_client_and_worker_run_from_the_compiled_wheel(compiled_wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(compiled_wheel) as archive:
        files = archive.namelist()
    libraries = [file for file in files if file.endswith(".so")]
    assert {file.partition(".cpython")[0].replace("/", ".") for file in libraries} >= set(COMPILED)
    # Each compiled module also has its source, which FOQS_PURE=1 chooses.
    assert {f"{name.replace('.', '/')}.py" for name in COMPILED} <= set(files)
    try_out(install_apart(tmp_path, compiled_wheel), "compiled")


@pytest.mark.spark
@pytest.mark.process
@pytest.mark.long
@pytest.mark.timeout(900)
def test_spark_sink_runs_from_the_wheel(installed: Installation) -> None:
    with installed.host() as address:
        installed.python(SPARK, address)


def closure(folder: Path, requirement: str) -> set[str]:
    """Return the names of all packages that a requirement needs here, from the metadata of an environment's packages."""
    [packages] = (folder / "venv" / "lib").glob("python3.*/site-packages")
    by_name = {canonicalize_name(one.name): one for one in distributions(path=[str(packages)])}
    found: set[str] = set()
    waiting = [Requirement(requirement)]
    while waiting:
        wanted = waiting.pop()
        key = canonicalize_name(wanted.name)
        needs = [Requirement(line) for line in by_name[key].requires or ()]
        extras = wanted.extras or {""}
        found.add(key)
        waiting += [
            need
            for need in needs
            if (need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras))
            and (need.extras or canonicalize_name(need.name) not in found)
        ]
    return found


@pytest.mark.process
@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_pip_installs_what_each_extra_needs_and_nothing_else(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    installation = Installation(tmp_path)
    python = installation.program.with_name("python")
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]

    def install_with(extra: str) -> set[str]:
        command = [*pip, "install", "--quiet", f"{wheel}{extra}", "-c", str(ROOT / "constraints.txt")]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        listed = subprocess.run([*pip, "list", "--format=json"], cwd=tmp_path, capture_output=True, text=True)
        found: set[str] = {canonicalize_name(row["name"]) for row in json.loads(listed.stdout)}
        return found - {"pip", "setuptools"}

    assert install_with("") == {"foqs", "thrift"}
    server = install_with("[server]")
    assert names(EXTRAS["server"]) <= server == closure(tmp_path, "foqs[server]")
    with installation.host() as address:
        installation.python(ENQUEUE, address)
    both = install_with("[spark]")
    assert names(EXTRAS["spark"]) <= both == server | closure(tmp_path, "foqs[spark]")
    with installation.host() as address:
        installation.python(SPARK, address)
