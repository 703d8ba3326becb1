"""What goes wrong in a model's answer without an error: loops, noise, an answer cut off, a layout without regions."""

from __future__ import annotations

import re
from enum import StrEnum

# A tail that repeats itself: a unit of so many characters at most, so many times, over so many characters at least.
_UNIT, _TIMES, _LOOP = 200, 20, 200
# Signs that people do repeat: leaders of a table of contents, rules.
_LEADERS = set(" .·…_-\u2013\u2014=*~\t\n|")
# Lines in a row that are all the same are a loop, too, when the model has found out of it again.
_SAME_LINES = 20
_REGION = re.compile(r"<\|box_start\|>\d+\s+\d+\s+\d+\s+\d+<\|box_end\|><\|ref_start\|>\w+?<\|ref_end\|>")


class Trouble(StrEnum):
    """What is wrong with an answer."""

    LENGTH = "length"  # it stopped at the most tokens
    LOOP = "loop"  # it repeats itself
    NOISE = "noise"  # "!!!!", or bytes that are no text
    NO_REGIONS = "no_regions"  # the layout is empty or can't be parsed, and the page has ink
    REJECTED = "rejected"  # the engine refused the request


def find(text: str, finish: str, layout: bool) -> Trouble | None:
    """Return what is wrong with an answer, or None.

    Args:
        text: the answer, special tokens included.
        finish: the engine's finish reason.
        layout: whether regions were asked for.
    """
    if noise(text):
        return Trouble.NOISE
    if loops(text):
        return Trouble.LOOP
    if finish == "length":
        return Trouble.LENGTH
    return Trouble.NO_REGIONS if layout and not _REGION.search(text) else None


def noise(text: str) -> bool:
    """Return whether an answer is mostly exclamation marks, the token 0 that broken attention gives, or no text."""
    body = "".join(text.split())
    if len(body) < 8:
        return False
    return body.count("!") > len(body) / 2 or body.count("\ufffd") > max(4, len(body) / 20)


def loops(text: str) -> bool:
    """Return whether an answer ends in a repetition, or has a run of equal lines.

    Leaders, rules and the rows of a table (OTSL ends each with <nl>) may be repeated.
    """
    body = text.rstrip()
    if "<nl>" in body:
        return False
    for unit in range(1, min(_UNIT, len(body) // _TIMES) + 1):
        size = max(unit * _TIMES, _LOOP)
        tail = body[-size:]
        if len(tail) == size and tail[unit:] == tail[:-unit] and not set(tail) <= _LEADERS:
            return True
    run, last = 0, ""
    for line in (line.strip() for line in text.splitlines()):
        run = run + 1 if line and line == last and not set(line) <= _LEADERS else 0
        last = line
        if run + 1 >= _SAME_LINES:
            return True
    return False
