"""How the console shows payloads, numbers and names."""

from __future__ import annotations

from foqs.console.formats import excerpt, hexadecimal, number, payload, visible


def test_text_is_shown_as_text_and_other_bytes_as_hexadecimal() -> None:
    assert payload("grüße\n\tzwei".encode()) == "grüße\n\tzwei"
    assert payload(b"\x00\x01ab").startswith("00000000  00 01 61 62")
    assert payload(b"\x1b[31m").startswith("00000000  1b 5b")
    assert payload(b"") == payload(None) == ""


def test_a_long_payload_is_cut_and_says_so() -> None:
    shown = payload(b"x" * 70_000)
    assert shown.startswith("x" * 65_536)
    assert shown.endswith("... and 4,464 bytes more")
    cut_in_a_character = "ü" * 40_000
    assert payload(b"x" + cut_in_a_character.encode()).startswith("x" + "ü" * 32_767)
    assert payload(b"\xff" * 70_000).startswith("00000000  ff ff")


def test_an_excerpt_is_the_beginning_of_a_text_on_one_line() -> None:
    assert excerpt(b"failed: no route\n\tto host ") == "failed: no route to host"
    assert excerpt(b"x" * 201) == "x" * 200 + " ..."
    assert excerpt(b"\x00\xff") == "00 ff"
    assert excerpt(b"a\x1b[31m") == "61 1b 5b 33 31 6d"
    assert excerpt(bytes(17)) == " ".join(["00"] * 16) + " ..."
    assert excerpt(b" \n") == "20 0a"
    assert excerpt(b"") == excerpt(None) == ""


def test_hexadecimal_has_sixteen_bytes_in_a_line() -> None:
    first, second = hexadecimal(bytes(range(65, 85))).splitlines()
    assert first == "00000000  41 42 43 44 45 46 47 48 49 4a 4b 4c 4d 4e 4f 50  ABCDEFGHIJKLMNOP"
    assert second.startswith("00000010  51 52 53 54 ")
    assert second.endswith("  QRST")


def test_numbers_have_separators_and_names_no_control_characters() -> None:
    assert (number(1_234_567), number(None)) == ("1,234,567", "-")
    assert (visible("a\x1bb\n"), visible(None)) == ("a\\x1bb\\n", "-")
