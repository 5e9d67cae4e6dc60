"""The documentation site: it works from disk, its links are valid, and its reference pages are complete."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import click
import pytest

import foqs_client
import foqs_client.consumer
from foqs.cli import root
from foqs_contract.idl import Foqs, ttypes

ROOT: Final = Path(__file__).parents[2]
ASSETS: Final = {
    ("script", "src"),
    ("link", "href"),
    ("img", "src"),
    ("iframe", "src"),
    ("source", "src"),
    ("object", "data"),
}
NO_ASSETS: Final = ("canonical", "next", "prev")
"""The link types in the <head> of a page that load nothing."""


class Page(HTMLParser):
    """The files that a page loads, its links, its anchors, and its text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.assets: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.paragraphs: list[str] = []
        self.text = ""
        self._open: str | None = None
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        self.assets += [
            values[name]
            for kind, name in ASSETS
            if kind == tag and name in values and values.get("rel") not in NO_ASSETS
        ]
        self.assets += re.findall(r"url\((.*?)\)", values.get("style", ""))
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "p":
            self.paragraphs.append("")
        self._open = tag

    def handle_data(self, data: str) -> None:
        if self._open not in ("script", "style"):
            self.text += data
        if self._open == "p":
            self.paragraphs[-1] += data


def build(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(target)],
        cwd=source,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site").resolve()
    built = build(ROOT, target)
    assert (built.returncode, built.stdout, built.stderr) == (0, "", "")
    return target


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    # Examples among the pictures are pages of their own.
    return {path: Page(path) for path in site.rglob("*.html") if "assets" not in path.parts}


def is_local(address: str) -> bool:
    parts = urlsplit(address)
    return not parts.netloc and parts.scheme in ("", "data")


def test_no_page_loads_anything_from_the_network(site: Path, pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        assert page.assets, path
        assert [asset for asset in page.assets if not is_local(asset)] == [], path
        # The theme loads a script from the network for these; draw them as SVG files.
        assert re.search(r'class="[^"]*mermaid', path.read_text()) is None, path
    styles = [*site.rglob("*.css"), *site.rglob("*.svg")]
    assert styles
    for path in styles:
        loaded = re.findall(r"(?:url\(|@import\s+|href=)[\"']?([^\"')\s]+)", path.read_text())
        assert [address for address in loaded if not is_local(address)] == [], path


def test_every_file_that_a_page_loads_or_links_to_is_there(site: Path, pages: dict[Path, Page]) -> None:
    dead = []
    for path, page in pages.items():
        for address in filter(is_local, (*page.links, *page.assets)):
            parts = urlsplit(address)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            known = target.is_file() and target.is_relative_to(site)
            if not known or (
                parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors
            ):
                dead.append(f"{path.relative_to(site)}: {address}")
    assert dead == []


def test_the_search_runs_from_disk(site: Path, pages: dict[Path, Page]) -> None:
    assert (site / "search" / "search_index.js").read_text().startswith("var __index = {")
    for path, page in pages.items():
        assert any(asset.endswith("iframe-worker.js") for asset in page.assets), path


def test_lists_are_shown_as_lists(pages: dict[Path, Page]) -> None:
    # Elsewhere a list may follow a paragraph without an empty line; here it would become part of the paragraph.
    for path, page in pages.items():
        assert [text for text in page.paragraphs if re.search(r"^\s*(- |\* |1\. )", text, re.MULTILINE)] == [], path


def test_the_page_of_calls_names_everything_in_the_contract(site: Path, pages: dict[Path, Page]) -> None:
    page = pages[site / "docs" / "reference" / "calls.html"]
    calls = [name for name in vars(Foqs.Iface) if not name.startswith("_")]
    types: dict[str, Any] = {
        name: value
        for name, value in vars(ttypes).items()
        if isinstance(value, type) and value.__module__ == ttypes.__name__
    }
    assert len(calls) > 30
    assert len(types) > 50
    assert {f"call-{name}" for name in calls} | set(types) <= page.anchors
    for kind in types.values():
        members = list(kind.__members__) if hasattr(kind, "__members__") else list(kind.__slots__)
        for member in members:
            assert re.search(rf"\b{member}\b", page.text), f"{kind.__name__}.{member}"


def test_the_page_of_the_command_line_lists_every_command_and_option(site: Path, pages: dict[Path, Page]) -> None:
    page = pages[site / "docs" / "reference" / "command-line.html"]
    headings = re.findall(r"^(foqs[a-z -]*)¶?$", page.text, re.MULTILINE)
    found = 0

    def look(path: str, command: click.Command) -> None:
        nonlocal found
        found += 1
        assert path in headings
        for param in command.params:
            if isinstance(param, click.Option) and not param.hidden:
                assert set(param.opts) <= set(re.findall(r"-+[\w-]+", page.text)), path
        if isinstance(command, click.Group):
            for name, inner in command.commands.items():
                look(f"{path} {name}", inner)

    look("foqs", root)
    assert found == len(headings) > 30
    assert "\b" not in page.text


def test_the_page_of_options_lists_every_option_with_its_default(site: Path, pages: dict[Path, Page]) -> None:
    page = pages[site / "docs" / "reference" / "options.html"]
    written = tomllib.loads((ROOT / "configs" / "foqs.toml").read_text())
    named = {f"{section}.{name}" for section, options in written.items() if section != "databases" for name in options}
    assert len(named) > 70
    assert named | {"databases.NAME.url", "auth.principals.NAME.token_file"} <= page.anchors
    assert "port, 0 to 65_535; default 7411" in page.text


@pytest.mark.parametrize(
    ("module", "name"), [(foqs_client, "python-client"), (foqs_client.consumer, "python-consumer")]
)
def test_the_page_of_a_python_module_lists_all_public_names(
    module: ModuleType, name: str, site: Path, pages: dict[Path, Page]
) -> None:
    page = pages[site / "docs" / "reference" / f"{name}.html"]
    assert {f"{module.__name__}.{each}" for each in module.__all__} <= page.anchors
    if module is foqs_client:
        calls = [each for each in dir(foqs_client.Client) if not each.startswith("_")]
        assert {f"foqs_client.Client.{each}" for each in calls} <= page.anchors


@pytest.mark.long
def test_a_dead_link_a_dead_anchor_and_a_page_missing_from_the_menu_fail(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for path in (*ROOT.glob("*.md"), ROOT / "mkdocs.yml", ROOT / "LICENSE"):
        shutil.copy(path, source)
    for folder in ("docs", "tools", "configs", "thrift", "foqs", "client", "shardmgr", "perf"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__", "results"))
    # These have a place in the menu, by their folder or by name.
    for name in (
        "docs/design/new.md",
        "docs/decisions/9999-new.md",
        "docs/glossary.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
    ):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text("# New\n")
    (source / "docs" / "new.md").write_text(
        "# New\n\n[a](nowhere.md) [b](client.md#nowhere) [c](../configs/nowhere.toml)\n"
    )
    built = build(source, tmp_path / "site")
    assert built.returncode == 1
    assert re.findall(r"^ +- (.*)$", built.stderr, re.MULTILINE) == ["docs/new.md"], built.stderr
    assert 'not included in the "nav"' in built.stderr
    for target in ("nowhere.md", "client.md#nowhere", "../configs/nowhere.toml"):
        assert f"'docs/new.md' contains a link '{target}'" in built.stderr
