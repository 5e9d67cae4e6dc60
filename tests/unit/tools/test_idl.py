"""Tests of the generated code: it matches the contract, and nothing shadows the library."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

import thrift
from foqs_contract.idl import Foqs, ttypes

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def idl() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tools_idl", ROOT / "tools" / "idl.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_committed_code_is_generated_from_the_contract(idl: ModuleType) -> None:
    assert idl.main(["--check"]) == 0


def test_a_changed_contract_and_a_changed_file_are_both_noticed(idl: ModuleType, tmp_path: Path) -> None:
    contract = tmp_path / "foqs.thrift"
    contract.write_text(idl.CONTRACT.read_text().replace("2: optional i32 priority", "2: optional i64 priority"))
    with pytest.raises(idl.Failed, match=r"ttypes\.py .*run python tools/idl\.py"):
        idl.check(contract, idl.GENERATED)
    copy = tmp_path / "idl"
    shutil.copytree(idl.GENERATED, copy, ignore=shutil.ignore_patterns("__pycache__"))
    idl.check(idl.CONTRACT, copy)
    (copy / "left_over.py").touch()
    with pytest.raises(idl.Failed, match=r"left_over\.py"):
        idl.check(idl.CONTRACT, copy)


def test_written_files_pass_the_check(idl: ModuleType, tmp_path: Path) -> None:
    idl.write(idl.CONTRACT, tmp_path / "idl")
    idl.check(idl.CONTRACT, tmp_path / "idl")


@pytest.mark.parametrize("module", [ttypes, Foqs])
def test_a_stub_has_every_struct_with_the_arguments_of_its_code(idl: ModuleType, module: ModuleType) -> None:
    stub = _stub_classes(idl, module.__name__.rpartition(".")[2])
    for name, kind in vars(module).items():
        if isinstance(kind, type) and kind.__module__ == module.__name__ and hasattr(kind, "thrift_spec"):
            [init] = [part for part in stub[name].body if isinstance(part, ast.FunctionDef)]
            assert [argument.arg for argument in init.args.args[1:]] == list(inspect.signature(kind).parameters)


def test_strings_of_requests_are_read_as_bytes_and_those_of_replies_as_str(idl: ModuleType) -> None:
    stub = _stub_classes(idl, "ttypes")
    read, written = ("EnqueueRequest", "namespace_name"), ("EnqueueResult", "id")
    assert [
        _field_types(stub, *field) for field in (read, written, ("ItemFilter", "topic"), ("NewItem", "payload"))
    ] == [
        ("bytes | None", "str | bytes | None"),
        ("str | None", "str | None"),
        ("Any | None", "str | bytes | None"),
        ("bytes | None", "bytes | None"),
    ]


def _stub_classes(idl: ModuleType, module: str) -> dict[str, ast.ClassDef]:
    tree = ast.parse((idl.GENERATED / f"{module}.pyi").read_text())
    return {part.name: part for part in tree.body if isinstance(part, ast.ClassDef)}


def _field_types(stub: dict[str, ast.ClassDef], struct: str, field: str) -> tuple[str, str]:
    """Return the types of an attribute and of its argument."""
    body = stub[struct].body
    [read] = [part.annotation for part in body if isinstance(part, ast.AnnAssign) and ast.unparse(part.target) == field]
    [init] = [part for part in body if isinstance(part, ast.FunctionDef)]
    [written] = [argument.annotation for argument in init.args.args if argument.arg == field]
    assert written is not None
    return ast.unparse(read), ast.unparse(written)


def test_contract_that_does_not_compile_is_reported_in_a_sentence(idl: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "bad.thrift").write_text("struct {")
    with pytest.raises(idl.Failed, match="does not compile"):
        idl.generate(tmp_path / "bad.thrift", tmp_path)


def test_missing_compiler_is_reported_in_a_sentence(
    idl: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert idl.main(["--check"]) == 1
    assert "install the package thrift-compiler" in capsys.readouterr().err


def test_the_folder_of_the_contract_does_not_shadow_the_library() -> None:
    assert not (ROOT / "thrift" / "__init__.py").exists()
    assert str(ROOT) in {str(Path(entry).resolve()) for entry in sys.path}
    assert thrift.__file__ is not None
    assert Path(thrift.__file__).resolve().parent != ROOT / "thrift"
    assert hasattr(__import__("thrift.Thrift").Thrift, "TApplicationException")
