"""The order in which the regions of a page are read, for detectors that give none.

The text goes by a recursive cut along white space. A page is cut into bands, one below the other. Bands that are
divided by the same gutter, the first of them into columns side by side, are read column by column: a gap that happens
to run through both columns does not part them, and a title or a figure across them does. Where boxes leave no white
space to cut along, the widest divides the others into those above and those below it.
"""

from __future__ import annotations

from collections.abc import Sequence

from pdfquarry.engine.regions import Region, by_place

SLACK = 0.005  # of the page: boxes that overlap by this much are still beside or below each other


def order(regions: Sequence[Region]) -> list[Region]:
    """The regions in reading order: what stands above the text, the text, what stands beside and below it.

    Args:
        regions: with types of mineru-vl-utils and boxes in 0..1, in any order; the result does not depend on it.
    """
    before = [region for region in regions if _rank(region) < 0]
    body = [region for region in regions if _rank(region) == 0]
    after = [region for region in regions if _rank(region) > 0]
    body.sort(key=by_place)
    return [
        *sorted(before, key=by_place),
        *_arranged(body),
        *sorted(after, key=lambda region: (_rank(region), by_place(region))),
    ]


def _rank(region: Region) -> int:
    if region["type"] == "page_number":
        return -1 if region["bbox"][1] < 0.5 else 4
    return {"header": -1, "aside_text": 1, "page_footnote": 2, "footer": 3}.get(region["type"], 0)


def _arranged(regions: list[Region]) -> list[Region]:
    if len(regions) < 2:
        return regions
    bands = _cut(regions, 1)
    if len(bands) == 1:
        columns = _cut(regions, 0)
        if len(columns) == 1:
            return _around_the_widest(regions)
        return [region for column in columns for region in _arranged(column)]
    out: list[Region] = []
    while bands:
        count = _with_the_same_gutter(bands)
        joined = [region for band in bands[:count] for region in band]
        parts = _cut(joined, 0) if count > 1 else [joined]
        out += [region for part in parts for region in _arranged(part)]
        del bands[:count]
    return out


def _cut(regions: list[Region], axis: int) -> list[list[Region]]:
    """Groups with white space between them, along x (0) or y (1), in that order."""

    def span(region: Region) -> tuple[float, float]:
        low, high = region["bbox"][axis], region["bbox"][axis + 2]
        give = min(SLACK, (high - low) / 4)
        return low + give, high - give

    groups: list[list[Region]] = []
    end = -1.0
    for region in sorted(regions, key=lambda region: (span(region), by_place(region))):
        low, high = span(region)
        if groups and low < end:
            groups[-1].append(region)
        else:
            groups.append([region])
        end = max(end, high)
    return groups


def _with_the_same_gutter(bands: list[list[Region]]) -> int:
    """How many of the bands, from the first on, are read column by column; 1 if the first stands for itself.

    At least one of them has columns side by side. A band that lies in one column alone belongs to it if it is wide
    enough for a paragraph; a short line may as well be a heading of what comes, or a date above both columns.
    """
    counts = [len(_cut(band, 0)) for band in bands]
    first = next((index for index, count in enumerate(counts) if count > 1), None)
    if first is None:
        return 1
    columns = counts[first]
    joined = [region for band in bands[: first + 1] for region in band]
    parts = _cut(joined, 0)
    if len(parts) != columns or not all(_is_paragraph(band, parts) for band in bands[:first]):
        return 1
    sure = first + 1
    for index in range(first + 1, len(bands)):
        joined = joined + bands[index]
        parts = _cut(joined, 0)
        if len(parts) != columns or counts[index] > columns:
            break
        if counts[index] > 1 or _is_paragraph(bands[index], parts):
            sure = index + 1
    return sure


def _is_paragraph(band: list[Region], columns: list[list[Region]]) -> bool:
    return any(_width(band) > 0.5 * _width(column) for column in columns if band[0] in column)


def _width(regions: list[Region]) -> float:
    return float(max(region["bbox"][2] for region in regions) - min(region["bbox"][0] for region in regions))


def _around_the_widest(regions: list[Region]) -> list[Region]:
    widest = min(regions, key=lambda region: (region["bbox"][0] - region["bbox"][2], by_place(region)))

    def middle(region: Region) -> float:
        return sum(map(float, region["bbox"][1::2]))

    others = [region for region in regions if region is not widest]
    above = [region for region in others if middle(region) < middle(widest)]
    return [*_arranged(above), widest, *_arranged([region for region in others if middle(region) >= middle(widest)])]
