"""An answer that can't be used is found out, and one that only looks odd is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdfquarry.engine.troubles import Trouble, find, loops, noise

REGION = "<|box_start|>100 100 900 200<|box_end|><|ref_start|>text<|ref_end|><|rotate_up|>"


@pytest.mark.parametrize(
    ("text", "finish", "layout", "trouble"),
    [
        (REGION, "stop", True, None),
        ("", "stop", True, Trouble.NO_REGIONS),
        ("I see a page with a title.", "stop", True, Trouble.NO_REGIONS),
        ("", "stop", False, None),
        ("The quarry opened.", "stop", False, None),
        ("The quarry opened", "length", False, Trouble.LENGTH),
        ("!" * 40, "stop", False, Trouble.NOISE),
        ("! " * 40, "length", True, Trouble.NOISE),
        ("\ufffd\u5e94\ufffd\ufffd\ufffd\ufffd\ufffd ab", "stop", False, Trouble.NOISE),
        ("The end. " + "of the stone " * 40, "length", False, Trouble.LOOP),
        ("same line\n" * 30 + "and out of it again", "stop", False, Trouble.LOOP),
    ],
)
def test_each_trouble_is_named(text: str, finish: str, layout: bool, trouble: Trouble | None) -> None:
    assert find(text, finish, layout) is trouble


@pytest.mark.parametrize(
    "text",
    [
        "Chapter 1 " + "." * 300 + " 7",
        "_" * 500,
        "<fcel>0<fcel>0<nl>" * 60,
        "Wait!!! Stop!!!",
        "ha ha ha ha ha ha",
        "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20",
    ],
)
def test_what_people_do_repeat_is_no_loop(text: str) -> None:
    assert find(text, "stop", False) is None


@given(st.text(alphabet=st.characters(categories=["L", "N"]), min_size=1, max_size=60), st.text(max_size=80))
def test_whatever_is_repeated_long_enough_is_a_loop(unit: str, before: str) -> None:
    assert loops(f"{before} {unit} " + f"{unit} " * 210) or "<nl>" in before


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=200, unique=True))
def test_a_list_of_different_words_is_no_loop_and_no_noise(numbers: list[int]) -> None:
    text = " ".join(f"word{number}" for number in numbers)
    assert not loops(text) and not noise(text)
