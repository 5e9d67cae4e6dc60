#!/usr/bin/env python3
"""Compiles the hot modules with mypyc: `compile.py` builds extension modules beside the sources.

`compile.py --clean` removes them. `compile.py --copy FOLDER` copies the tree to the folder and compiles there, so
that no extension module hides a source of this tree; a second run compiles only if a source changed. `--level 0` keeps the
C compiler from optimizing, which takes most of the time; each level has a folder of its own. The list of modules is
`[tool.foqs] compiled` in pyproject.toml; hatch_build.py builds the same ones into a wheel. The sources stay
the specification: nothing is written for the compiler alone but explicit
constructors of dataclasses that are made for every item.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tomllib
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
GROUP: Final = "foqs_compiled"
"""The modules share one library, `foqs_compiled__mypyc`, beside the packages."""
NOT_COPIED: Final = (".*", "*.so", "build", "dist", "foqs-data", "results", "site", "node_modules", "__pycache__")


def sources(root: Path) -> list[str]:
    """Return the files to compile, relative to the root."""
    with (root / "pyproject.toml").open("rb") as file:
        modules: list[str] = tomllib.load(file)["tool"]["foqs"]["compiled"]
    return [f"{module.replace('.', '/')}.py" for module in modules]


def built(root: Path = ROOT) -> list[Path]:
    """Return the extension modules that are in the tree."""
    found = [path for source in sources(root) for path in (root / source).parent.glob(f"{Path(source).stem}.*.so")]
    return sorted({*found, *root.glob(f"{GROUP}__mypyc.*.so")})


def clean(root: Path = ROOT) -> None:
    for path in built(root):
        path.unlink()


def copy_tree(folder: Path) -> None:
    """Renew the copy of the tree. Its `build` stays, for the next compilation."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if old.is_dir() and old.name != "build":
            shutil.rmtree(old)
        elif old.is_file():
            old.unlink()
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*NOT_COPIED), dirs_exist_ok=True)


def build(root: Path = ROOT, level: str = "2") -> list[Path]:
    """Compile, and return the extension modules. The level is that of the C compiler, from 0 to 3."""
    from mypyc.build import mypycify
    from setuptools import Distribution

    clean(root)
    os.chdir(root)
    # mypyc reads the packages as mypy does, from the root and from client/.
    os.environ["MYPYPATH"] = str(root / "client")
    options = ["--config-file", "pyproject.toml", *sources(root)]
    extensions = mypycify(options, opt_level=level, debug_level="0", group_name=GROUP, target_dir="build/mypyc")
    for extension in extensions:
        # gcc looks for this from the start of the file at each statement: two minutes in a file of 400,000 lines.
        extension.extra_compile_args.append("-Wno-misleading-indentation")
    # Not `setup`, which would read pyproject.toml as a project of setuptools.
    command: Any = Distribution({"name": "foqs", "ext_modules": extensions}).get_command_obj("build_ext")
    command.inplace = True
    command.build_temp = "build/mypyc"
    command.ensure_finalized()
    command.run()
    return built(root)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compiles the hot modules with mypyc.")
    parser.add_argument("--clean", action="store_true", help="remove the extension modules beside the sources")
    parser.add_argument("--copy", type=Path, metavar="FOLDER", help="compile in a copy of the tree, below build/")
    parser.add_argument("--level", choices="0123", default="2", help="how far the C compiler optimizes (default 2)")
    args = parser.parse_args()
    if args.clean:
        clean()
        return
    root = ROOT
    if args.copy is not None:
        root = args.copy.resolve()
        if root.parent != ROOT / "build":
            parser.error(f"--copy {args.copy}: name a folder in {ROOT / 'build'}, whose content it may replace")
        copy_tree(root)
    print(f"compiled {len(build(root, args.level)) - 1} modules in {root}")


if __name__ == "__main__":
    main()
