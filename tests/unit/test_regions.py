"""Of what a detector finds on a page, each text is read once, and in the order a reader would take."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdfquarry.engine.reading_order import order
from pdfquarry.engine.regions import CLASSES, Region, clean

# The block types of mineru-vl-utils 2.0.7 that a detector may name.
BLOCK_TYPES = {
    *("text", "title", "table", "equation", "formula_number", "table_caption", "image_caption", "table_footnote"),
    *("image", "header", "footer", "page_number", "page_footnote", "aside_text"),
}


def region(kind: str, x0: float, y0: float, x1: float, y1: float, score: float = 0.5) -> Region:
    return {"type": kind, "bbox": [x0, y0, x1, y1], "angle": 0, "score": score}


def text(x0: float, y0: float, x1: float, y1: float, score: float = 0.5) -> Region:
    return region("text", x0, y0, x1, y1, score)


coordinates = st.floats(-0.2, 1.2)
found = st.builds(
    region, st.sampled_from(sorted(CLASSES.values())), *[coordinates] * 4, score=st.floats(0, 1, exclude_min=True)
)
boxes = st.integers(0, 90).flatmap(lambda low: st.tuples(st.just(low / 100), st.integers(low + 2, 100)))
placed = st.builds(
    lambda kind, x, y: region(kind, x[0], y[0], x[1] / 100, y[1] / 100),
    st.sampled_from(sorted(BLOCK_TYPES)),
    boxes,
    boxes,
)


def key(found: Region) -> tuple[Any, ...]:
    return (found["type"], *found["bbox"], found["score"])


# Cleaning


@given(st.lists(found, max_size=12), st.randoms(use_true_random=False))
def test_whatever_is_found_comes_out_as_blocks_that_mineru_takes_whatever_the_order(
    regions: list[Region], random: Any
) -> None:
    cleaned = clean(regions)
    for one in cleaned:
        x0, y0, x1, y1 = one["bbox"]
        assert 0 <= x0 < x1 <= 1 and 0 <= y0 < y1 <= 1
        assert one["type"] in BLOCK_TYPES
    shuffled = list(regions)
    random.shuffle(shuffled)
    assert clean(shuffled) == cleaned


def test_every_class_has_a_type() -> None:
    assert {CLASSES[name] for name in CLASSES} - {"abandon"} <= BLOCK_TYPES and len(CLASSES) == 10


def test_boxes_are_cut_to_the_page_and_those_without_an_extent_are_dropped() -> None:
    nowhere = [text(1.1, 0.1, 1.2, 0.2), text(0.5, 0.5, 0.5, 0.9), text(0.6, 0.5, 0.4, 0.9)]
    assert clean([*nowhere, text(math.nan, 0, 1, 1), text(0, 0, math.inf, 1)]) == []
    assert clean([text(-0.1, 0.2, 1.5, 0.3)])[0]["bbox"] == [0, 0.2, 1, 0.3]


def test_of_near_duplicates_of_any_type_the_better_stays() -> None:
    (one,) = clean([text(0.1, 0.2, 0.9, 0.4, 0.3), region("title", 0.1, 0.2, 0.9, 0.401, 0.6)])
    assert one["type"] == "title"


def test_side_by_side_and_slightly_overlapping_regions_all_stay() -> None:
    page = [text(0.1, 0.2, 0.51, 0.4), text(0.49, 0.2, 0.9, 0.4), text(0.1, 0.39, 0.9, 0.6)]
    assert len(clean(page)) == 3


@pytest.mark.parametrize("kind", ["text", "title", "equation", "table_caption", "formula_number", "abandon"])
def test_text_in_a_table_is_read_with_the_table(kind: str) -> None:
    table = region("table", 0.1, 0.2, 0.9, 0.6, 0.5)
    assert clean([table, region(kind, 0.2, 0.3, 0.5, 0.4, 0.9)]) == [table]


def test_a_table_in_a_figure_and_a_figure_in_a_text_stay() -> None:
    inner = region("table", 0.2, 0.3, 0.5, 0.4)
    assert len(clean([region("image", 0.1, 0.2, 0.9, 0.6), inner])) == 2
    assert len(clean([text(0.1, 0.2, 0.9, 0.6), inner | {"type": "image"}])) == 2


def test_a_text_in_a_text_is_read_once_and_nothing_of_either_is_lost() -> None:
    (one,) = clean([text(0.1, 0.2, 0.9, 0.4), text(0.2, 0.36, 0.5, 0.41, 0.9)])
    assert one["bbox"] == [0.1, 0.2, 0.9, 0.41]


def test_a_box_around_better_findings_gives_way_unless_text_would_be_lost() -> None:
    halves = [text(0.1, 0.2, 0.9, 0.39, 0.8), text(0.1, 0.41, 0.9, 0.6, 0.8)]
    assert len(clean([text(0.1, 0.2, 0.9, 0.6, 0.2), *halves])) == 2
    small = [text(0.1, 0.2, 0.3, 0.25, 0.8), text(0.1, 0.5, 0.3, 0.55, 0.8)]
    (one,) = clean([text(0.1, 0.2, 0.9, 0.6, 0.2), *small])
    assert one["bbox"] == [0.1, 0.2, 0.9, 0.6]


@pytest.mark.parametrize(
    ("box", "kind"),
    [
        ((0.1, 0.03, 0.9, 0.06), "header"),
        ((0.1, 0.94, 0.9, 0.97), "footer"),
        ((0.48, 0.95, 0.52, 0.97), "page_number"),
        ((0.92, 0.03, 0.95, 0.05), "page_number"),
        ((0.1, 0.8, 0.9, 0.9), "page_footnote"),
        ((0.02, 0.3, 0.06, 0.7), "aside_text"),
        ((0.1, 0.4, 0.9, 0.6), "text"),
    ],
)
def test_what_is_not_running_text_is_told_by_its_place(box: tuple[float, ...], kind: str) -> None:
    assert [one["type"] for one in clean([region("abandon", *box)])] == [kind]


def test_running_text_is_not_given_up_for_what_lies_in_it() -> None:
    paragraph = text(0.1, 0.2, 0.9, 0.6, 0.4)
    assert clean([paragraph, region("abandon", 0.8, 0.55, 0.9, 0.605, 0.9)]) == [paragraph]
    header = region("abandon", 0.1, 0.02, 0.9, 0.1, 0.3)
    assert [one["type"] for one in clean([header, text(0.2, 0.03, 0.5, 0.08, 0.8)])] == ["text"]
    assert [one["type"] for one in clean([header, text(0.2, 0.03, 0.5, 0.08, 0.2)])] == ["header"]


def test_a_page_number_is_not_read_as_text_too() -> None:
    page = [region("abandon", 0.49, 0.95, 0.51, 0.97, 0.8), text(0.488, 0.948, 0.512, 0.972, 0.12)]
    assert [one["type"] for one in clean(page)] == ["page_number"]


# Reading order


@given(st.lists(placed, max_size=20), st.randoms(use_true_random=False))
def test_the_order_is_a_permutation_and_depends_on_the_boxes_alone(regions: list[Region], random: Any) -> None:
    ordered = order(regions)
    assert sorted(map(key, ordered)) == sorted(map(key, regions))
    shuffled = list(regions)
    random.shuffle(shuffled)
    assert list(map(key, order(shuffled))) == list(map(key, ordered))


# Where paragraphs of a column end, in hundredths of its height; the two columns have no ends in common, or all of them.
ends = st.lists(st.integers(3, 97), max_size=6, unique=True).map(sorted)
jitter = st.floats(-0.002, 0.002)


def column(x0: float, x1: float, top: float, bottom: float, ends: list[int], shake: float) -> list[Region]:
    cuts = [top, *(top + end / 100 * (bottom - top) for end in ends if end), bottom]
    pairs = [pair for pair in itertools.pairwise(cuts) if pair[1] - pair[0] > 0.02]
    return [text(x0 + shake, low + 0.002, x1 - shake, high - 0.002 + shake) for low, high in pairs]


@given(ends, ends, jitter, st.booleans(), st.randoms(use_true_random=False))
def test_a_title_across_is_first_then_the_left_column_then_the_right(
    left_ends: list[int], right_ends: list[int], shake: float, same: bool, random: Any
) -> None:
    title = region("title", 0.1, 0.15, 0.9, 0.18)
    left = column(0.1, 0.48, 0.2, 0.88, left_ends, shake)
    right = column(0.52, 0.9, 0.2, 0.88, left_ends if same else right_ends, shake)
    page = [title, *left, *right]
    random.shuffle(page)
    assert order(page) == [title, *left, *right]


@given(ends, ends, ends, ends)
def test_a_figure_across_divides_what_is_above_it_from_what_is_below(
    one: list[int], two: list[int], three: list[int], four: list[int]
) -> None:
    above = [column(0.1, 0.48, 0.1, 0.4, one, 0), column(0.52, 0.9, 0.1, 0.4, two, 0)]
    figure = [region("image", 0.1, 0.42, 0.9, 0.6), region("image_caption", 0.3, 0.61, 0.7, 0.63)]
    below = [column(0.1, 0.48, 0.65, 0.9, three, 0), column(0.52, 0.9, 0.65, 0.9, four, 0)]
    page = [*above[0], *above[1], *figure, *below[0], *below[1]]
    assert order(page[::-1]) == page


@given(ends, jitter)
def test_one_column_is_read_from_the_top_down(paragraph_ends: list[int], shake: float) -> None:
    page = column(0.1, 0.9, 0.1, 0.9, paragraph_ends, shake)
    assert order(page[::-1]) == page


def test_columns_of_unequal_length_are_read_to_their_ends() -> None:
    left = [text(0.1, 0.2, 0.48, 0.4), text(0.1, 0.42, 0.48, 0.6), text(0.1, 0.62, 0.48, 0.88)]
    right = [text(0.52, 0.2, 0.9, 0.4)]
    assert order([*right, *left]) == [*left, *right]
    assert order([*left[:1], *right, text(0.52, 0.42, 0.9, 0.88)]) == [*left[:1], *right, text(0.52, 0.42, 0.9, 0.88)]


def test_a_paragraph_that_begins_above_the_other_column_is_still_in_its_own() -> None:
    left, right = [text(0.1, 0.13, 0.48, 0.8)], [text(0.52, 0.1, 0.9, 0.12), text(0.52, 0.13, 0.9, 0.8)]
    assert order([*right, *left]) == [*left, *right]
    date = text(0.75, 0.1, 0.9, 0.12)
    assert order([*right[1:], *left, date]) == [date, *left, *right[1:]]


def test_three_columns_are_not_joined_with_two() -> None:
    three = [text(0.1, 0.1, 0.35, 0.3), text(0.4, 0.1, 0.62, 0.3), text(0.67, 0.1, 0.9, 0.3)]
    two = [text(0.1, 0.32, 0.35, 0.8), text(0.4, 0.32, 0.9, 0.8)]
    assert order([*two, *three]) == [*three, *two]


def test_a_short_heading_below_two_figures_is_not_drawn_into_the_left_one() -> None:
    figures = [region("image", 0.1, 0.1, 0.48, 0.3), region("image", 0.52, 0.1, 0.9, 0.3)]
    rest = [region("title", 0.1, 0.33, 0.25, 0.35), text(0.1, 0.37, 0.9, 0.8)]
    assert order([*rest, *figures]) == [*figures, *rest]


def test_two_columns_are_not_joined_with_three() -> None:
    two = [text(0.1, 0.1, 0.35, 0.3), text(0.4, 0.1, 0.9, 0.3)]
    three = [text(0.1, 0.32, 0.35, 0.8), text(0.4, 0.32, 0.62, 0.8), text(0.67, 0.32, 0.9, 0.8)]
    assert order([*three, *two]) == [*two, *three]


def test_a_title_that_touches_both_columns_is_still_first() -> None:
    title = region("title", 0.1, 0.1, 0.9, 0.16)
    left = [text(0.1, 0.14, 0.48, 0.4), text(0.1, 0.42, 0.48, 0.8)]
    right = [text(0.52, 0.14, 0.9, 0.5), text(0.52, 0.52, 0.9, 0.8)]
    assert order([*right, *left, title]) == [title, *left, *right]


def test_columns_whose_boxes_overlap_a_little_are_still_columns() -> None:
    left = [text(0.1, 0.1, 0.503, 0.4), text(0.1, 0.398, 0.503, 0.8)]
    right = [text(0.497, 0.1, 0.9, 0.3), text(0.497, 0.298, 0.9, 0.8)]
    assert order([*right, *left]) == [*left, *right]


def test_an_equation_comes_before_its_number() -> None:
    page = [text(0.1, 0.1, 0.9, 0.2), region("equation", 0.3, 0.22, 0.7, 0.28)]
    page += [region("formula_number", 0.86, 0.24, 0.9, 0.26), text(0.1, 0.3, 0.9, 0.4)]
    assert order(page[::-1]) == page


def test_what_stands_around_the_text_does_not_part_it() -> None:
    left, right = text(0.15, 0.2, 0.48, 0.8), text(0.52, 0.2, 0.9, 0.8)
    head = region("header", 0.2, 0.05, 0.8, 0.07)
    around = [region("aside_text", 0.02, 0.3, 0.05, 0.7), region("page_footnote", 0.15, 0.75, 0.7, 0.85)]
    foot = [region("footer", 0.1, 0.93, 0.4, 0.95), region("page_number", 0.49, 0.95, 0.51, 0.97)]
    page = [head, left, right, *around, *foot]
    assert order(page[::-1]) == page
