"""The templates of the console: they escape everything, and the policy allows what they hold."""

from __future__ import annotations

import importlib.resources
import re

import pytest

TEMPLATES = {
    file.name: file.read_text() for file in (importlib.resources.files("foqs.console") / "templates").iterdir()
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_no_text_is_left_unescaped(name: str) -> None:
    assert not re.search(r"\|\s*(safe|forceescape)|autoescape|Markup", TEMPLATES[name])


@pytest.mark.parametrize("name", TEMPLATES)
def test_no_script_and_no_style_is_inline(name: str) -> None:
    source = TEMPLATES[name]
    assert not re.search(r"<script(?![^>]* src=)|<style|\son\w+=|\sstyle=|javascript:", source)


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_address_is_a_link_of_the_site(name: str) -> None:
    addresses = re.findall(r"\b(?:href|action|src|formaction|data-stream)=[\"']([^\"']*)", TEMPLATES[name])
    assert [each for each in addresses if not re.match(r"#|\{\{ (link|static)\(|\{\{ stream \}\}", each)] == []
