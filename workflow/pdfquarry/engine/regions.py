"""The regions that a layout detector found on a page: their types, and which of them stay.

A region is ``{"type", "bbox", "angle", "score"}``: a block type of mineru-vl-utils, ``[x0, y0, x1, y1]`` as floats in
0..1 from the page's top left corner, the rotation in degrees, and the detector's score in 0..1. Nothing here depends on
the order in which regions come in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

Region = dict[str, Any]
Box = Sequence[float]

# The ten classes of DocLayout-YOLO (trained on DocStructBench). ``abandon`` is whatever is not running text; what it
# becomes depends on its place.
ABANDON = "abandon"
CLASSES = {
    "title": "title",
    "plain text": "text",
    "abandon": ABANDON,
    "figure": "image",
    "figure_caption": "image_caption",
    "table": "table",
    "table_caption": "table_caption",
    "table_footnote": "table_footnote",
    "isolate_formula": "equation",
    "formula_caption": "formula_number",
}
VISUALS = frozenset({"image", "table"})

SMALLEST = 0.001  # of the page: two pixels at 200 dpi, nothing that could be read
SAME = 0.9  # intersection over union from which two boxes are one finding
DISPUTED = 0.5  # the same, where one says abandon and the other does not
INSIDE = 0.8  # share of a box that lies in another, from which it is inside it


def clean(regions: Sequence[Region]) -> list[Region]:
    """What is worth reading of what a detector found, each text once.

    Boxes are cut to the page; those without an extent are dropped. Of near-duplicates, of whatever types, the one with
    the better score stays. Then nested boxes: see ``_without_nested``. ``abandon`` gets its type by its place.

    Args:
        regions: as the detector gave them; ``abandon`` is a type here, and boxes may lie over the edge.

    Returns:
        New regions, best score first.
    """
    clipped = [_clipped(region) for region in regions]
    kept: list[Region] = []
    for region in sorted((found for found in clipped if found), key=_by_score):
        if not any(_is_same(region, other) for other in kept):
            kept.append(region)
    return [_placed(region) for region in sorted(_without_nested(_without_wraps(kept)), key=_by_score)]


def _by_score(region: Region) -> tuple[Any, ...]:
    return (-region["score"], *by_place(region))


def by_place(region: Region) -> tuple[Any, ...]:
    """A key that sorts regions from the top down, and tells any two apart that differ."""
    x0, y0, x1, y1 = region["bbox"]
    return (y0, x0, y1, x1, region["type"], region["score"])


def _clipped(region: Region) -> Region | None:
    values = [float(value) for value in region["bbox"]]
    if not all(map(math.isfinite, values)):
        return None
    x0, y0, x1, y1 = (min(1.0, max(0.0, value)) for value in values)
    return region | {"bbox": [x0, y0, x1, y1]} if x1 - x0 > SMALLEST and y1 - y0 > SMALLEST else None


def _area(box: Box) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])


def _shared(one: Box, other: Box) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return width * height if width > 0 and height > 0 else 0.0


def _overlap(one: Box, other: Box) -> float:
    shared = _shared(one, other)
    return shared / (_area(one) + _area(other) - shared)


def _is_same(one: Region, other: Region) -> bool:
    # A page number found as abandon and, a little larger, as a faint text is one thing, to be read as what it is.
    disputed = (one["type"] == ABANDON) != (other["type"] == ABANDON)
    return _overlap(one["bbox"], other["bbox"]) > (DISPUTED if disputed else SAME)


def _is_inside(small: Region, large: Region) -> bool:
    area, other = _area(small["bbox"]), _area(large["bbox"])
    return area <= other and _shared(small["bbox"], large["bbox"]) >= INSIDE * area


def _without_wraps(regions: list[Region]) -> list[Region]:
    """Without boxes drawn around several better findings that fill at least half of them.

    What they do not fill would be lost, so a larger one with little in it stays.
    """
    kept = []
    for region in regions:
        inside = [other for other in regions if other is not region and _is_inside(other, region)]
        filled = sum(_shared(other["bbox"], region["bbox"]) for other in inside)
        better = len(inside) > 1 and sum(other["score"] for other in inside) / len(inside) > region["score"]
        if not (better and filled >= 0.5 * _area(region["bbox"])):
            kept.append(region)
    return kept


def _without_nested(regions: list[Region]) -> list[Region]:
    """Without what would be read twice, once for itself and once as a part of the box that it lies in.

    In a table or a picture all but tables and pictures is dropped: a table's text is read with it, a picture's is in
    the picture. A text in a text, a table in a table and a picture in a picture is dropped too, and the larger grows to
    hold it. Between running text and ``abandon`` the better score decides if the text is the smaller, else the text
    stays. A table in a picture, and either of them in a text, stays: both are needed.
    """
    kept: list[Region] = []
    for small in sorted(regions, key=lambda region: (-_area(region["bbox"]), _by_score(region))):
        stays = True
        for index, large in enumerate(kept):
            if not stays or not _is_inside(small, large):
                continue
            visual = small["type"] in VISUALS
            if visual and large["type"] != small["type"]:
                continue
            if large["type"] == ABANDON != small["type"] and small["score"] > large["score"]:
                kept[index] = small
            elif visual or (large["type"] not in VISUALS and small["type"] != ABANDON):
                kept[index] = large | {"bbox": _union(large["bbox"], small["bbox"])}
            stays = False
        if stays:
            kept.append(small)
    return kept


def _union(one: Box, other: Box) -> list[float]:
    return [min(one[0], other[0]), min(one[1], other[1]), max(one[2], other[2]), max(one[3], other[3])]


def _placed(region: Region) -> Region:
    """``abandon`` as what it is by its place: in the upper or lower margin, at the side, or in the midst of the text.

    All of them are read and none is thrown away here. What lies in the midst of the page may be text that the detector
    misjudged, so it stays in the text.
    """
    if region["type"] != ABANDON:
        return region
    x0, y0, x1, y1 = region["bbox"]
    if y1 <= 0.12 or y0 >= 0.92:
        name = "page_number" if x1 - x0 < 0.06 else "header" if y1 <= 0.12 else "footer"
    elif x1 <= 0.12 or x0 >= 0.88:
        name = "aside_text"
    elif y0 >= 0.7 and x1 - x0 > 1 / 3:
        name = "page_footnote"
    else:
        name = "footer" if y0 >= 0.88 else "text"
    return region | {"type": name}
