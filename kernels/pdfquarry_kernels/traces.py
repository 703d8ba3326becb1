"""What a trace of ``torch.profiler`` says: which operators cost most, and which convolutions look like a fallback.

Works on the events of a Chrome trace (``export_chrome_trace``, recorded with ``record_shapes=True``), whoever recorded
it, and needs neither torch nor a GPU. A convolution is one operator here, whatever it calls inside. On a GPU an
operator costs the time of the kernels that it launches; kernels launched outside of any (Triton's, called from Python)
go by their own names. Without a GPU it costs the CPU's time, that of other operators inside left out.
"""

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from pdfquarry_kernels import roofline
from pdfquarry_kernels.roofline import Card

Event = Mapping[str, Any]

# How far above its roofline a convolution may be before it is called a fallback. Public reports put MIOpen's naive
# kernel and cuDNN's Conv3d 40 to 400 times above, and ordinary library convolutions below 10 (docs/profile.md).
FALLBACK_RATIO = 20.0
# No convolution is faster than about this, however small: launch, first loads, last stores.
LEAST_US = 10.0
# Convolutions that are fallbacks by their own authors' words, in the names of kernels or of operators inside.
FALLBACK_NAMES = {
    "naive_conv": "MIOpen's naive kernel, its last resort",
    "slow_conv": "torch's own loop, for want of a library's kernel",
}
# Taken as one, with all that they call.
WHOLE = ("aten::convolution", "pdfquarry::patch_embed")
DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
BYTES = {"c10::BFloat16": 2, "c10::Half": 2, "float": 4}
SHOWN = 10


class Row(NamedTuple):
    """One operator with its inputs, over all of its calls.

    Attributes:
        operator: its name; the kernel's where no operator launched it.
        shapes: of its tensors, as text.
        dtype: of its first tensor, as torch calls it.
        calls: how many.
        us: their time together.
        share: of the whole.
        kernels: what ran on the GPU, costliest first.
        floor_us: the least time for all calls that the card's peaks allow; None for what is no convolution.
        ratio: time over floor.
        fallback: why it looks like a fallback; empty if it doesn't.
    """

    operator: str
    shapes: str
    dtype: str
    calls: int
    us: float
    share: float
    kernels: tuple[str, ...]
    floor_us: float | None
    ratio: float | None
    fallback: str


class _Operator:
    """An operator's event in the tree of calls of its thread; ``inside`` names all that it calls, at any depth."""

    def __init__(self, event: Event, parent: "_Operator | None") -> None:
        self.event, self.parent = event, parent
        self.start, self.end = event["ts"], event["ts"] + event["dur"]
        self.own_us: float = event["dur"]
        self.inside: list[str] = []

    @property
    def owner(self) -> "_Operator":
        """The outermost operator around this one that is taken as a whole; itself if there is none."""
        found, above = self, self.parent
        while above is not None:
            found = above if above.event["name"] in WHOLE else found
            above = above.parent
        return found


def operators(events: Iterable[Event], card: Card | None) -> list[Row]:
    """Every operator that took time, costliest first.

    Args:
        events: ``traceEvents`` of a trace.
        card: whose peaks the floors are for; None leaves floors and ratios out.
    """
    spans = [event for event in events if event.get("ph") == "X" and "dur" in event]
    tree = _tree([event for event in spans if event.get("cat") == "cpu_op"])
    work = [event for event in spans if event.get("cat") in DEVICE_WORK]
    sums: dict[tuple[str, ...], dict[str, Any]] = {}

    def add(key: tuple[str, ...], event: Event | None, us: float, kernel: str, call: object, inside: list[str]) -> None:
        row = sums.setdefault(key, {"event": event, "us": 0.0, "kernels": {}, "calls": set(), "inside": set()})
        row["us"] += us
        row["calls"].add(call)
        row["inside"].update(inside)
        if kernel:
            row["kernels"][kernel] = row["kernels"].get(kernel, 0.0) + us

    if work:
        launcher = _launchers(spans, tree)
        for index, event in enumerate(work):
            operator = launcher(event)
            if operator is None:
                add((event["name"],), None, event["dur"], event["name"], index, [])
            else:
                owner = operator.owner
                add(_key(owner.event), owner.event, event["dur"], event["name"], id(owner), owner.inside)
    else:
        for operator in (one for thread in tree.values() for one in thread):
            owner = operator.owner
            add(_key(owner.event), owner.event, operator.own_us, "", id(owner), owner.inside)
    total = sum(row["us"] for row in sums.values())
    rows = [_row(key, row, total, card) for key, row in sums.items() if row["us"] > 0]
    return sorted(rows, key=lambda row: -row.us)


def costliest(rows: Sequence[Row]) -> list[Row]:
    """The ten costliest, and below them every other one that looks like a fallback."""
    return [*rows[:SHOWN], *(row for row in rows[SHOWN:] if row.fallback)]


def _tree(events: list[Event]) -> dict[tuple[Any, Any], list[_Operator]]:
    """The operators of each thread in the order of their starts, each knowing the one that called it."""
    threads: dict[tuple[Any, Any], list[_Operator]] = {}
    for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        thread = threads.setdefault((event.get("pid"), event.get("tid")), [])
        parent = thread[-1] if thread else None
        while parent is not None and event["ts"] >= parent.end:
            parent = parent.parent
        operator = _Operator(event, parent)
        if parent is not None:
            parent.own_us -= event["dur"]
        while parent is not None:
            parent.inside.append(event["name"])
            parent = parent.parent
        thread.append(operator)
    return threads


def _launchers(spans: list[Event], tree: dict[tuple[Any, Any], list[_Operator]]) -> Any:
    """A function from an event of the device to the operator that launched it, or None.

    The profiler's own number where there is one, else the operator around the launch.
    """
    everything = [operator for thread in tree.values() for operator in thread]
    by_id = {operator.event.get("args", {}).get("External id"): operator for operator in everything}
    by_id.pop(None, None)
    launches = {
        event["args"]["correlation"]: event
        for event in spans
        if event.get("cat") not in DEVICE_WORK and "correlation" in event.get("args", {})
    }
    starts = {thread: [operator.start for operator in found] for thread, found in tree.items()}

    def launcher(event: Event) -> _Operator | None:
        arguments = event.get("args", {})
        if arguments.get("External id") in by_id:
            return by_id[arguments["External id"]]
        launch = launches.get(arguments.get("correlation"))
        if launch is None:
            return None
        thread = launch.get("pid"), launch.get("tid")
        index = bisect_right(starts.get(thread, []), launch["ts"]) - 1
        operator = tree[thread][index] if index >= 0 else None
        while operator is not None and launch["ts"] >= operator.end:
            operator = operator.parent
        return operator

    return launcher


def _key(event: Event) -> tuple[str, ...]:
    arguments = event.get("args", {})
    details = [arguments.get(name) for name in ("Input Dims", "Input type")]
    details.append(arguments.get("Concrete Inputs") if event["name"] in WHOLE else None)
    return event["name"], json.dumps(details)


def _row(key: tuple[str, ...], row: dict[str, Any], total: float, card: Card | None) -> Row:
    event, calls, us = row["event"], len(row["calls"]), row["us"]
    arguments = event.get("args", {}) if event else {}
    shapes = [shape for shape in arguments.get("Input Dims", []) if shape]
    shapes = [shape for shape in shapes if isinstance(shape[0], int)]  # the others are lists of tensors
    described = ", ".join("x".join(map(str, shape)) for shape in shapes)
    kinds = [kind for kind in arguments.get("Input type", []) if kind in (*BYTES, "double", "int", "long int")]
    dtype = kinds[0] if kinds else ""
    kernels = tuple(sorted(row["kernels"], key=lambda name: -row["kernels"][name]))
    floor = least_us(key[0], arguments, card) if card else None
    ratio = us / calls / floor if floor else None
    # Only on a GPU is the loop a sign of trouble: on the CPU torch prefers it for small images.
    names = [*kernels, key[0], *(row["inside"] if kernels and key[0] in WHOLE else ())]
    reasons = [f"{mark}: {why}" for mark, why in FALLBACK_NAMES.items() if any(mark in name for name in names)]
    if ratio is not None and ratio > FALLBACK_RATIO:
        reasons.append(f"{ratio:.0f} times its roofline")
    return Row(
        operator=key[0],
        shapes=described + _stride_and_dilation(key[0], arguments),
        dtype=dtype.removeprefix("c10::"),
        calls=calls,
        us=us,
        share=us / total if total else 0.0,
        kernels=kernels,
        floor_us=floor * calls if floor else None,
        ratio=ratio,
        fallback="; ".join(reasons),
    )


def least_us(name: str, arguments: Mapping[str, Any], card: Card) -> float | None:
    """The least time of one call of a convolution or patch embedding; None if its inputs don't tell."""
    if name not in WHOLE:
        return None
    try:
        x, weight = arguments["Input Dims"][:2]
        size = BYTES[arguments["Input type"][0]]
        if name == "aten::convolution":
            stride, padding, dilation, transposed = map(_numbers, arguments["Concrete Inputs"][3:7])
            if transposed:
                return None
            zipped = zip(x[2:], weight[2:], *(_spread(v, len(x) - 2) for v in (stride, padding, dilation)), strict=True)
            out = x[0] * weight[0] * prod((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in zipped)
            macs, traffic = out * prod(weight[1:]), size * (prod(x) + prod(weight) + out)
        else:
            macs, traffic = roofline.patch_embed_cost(x[0], weight[0], prod(weight[1:]), size)
    except (KeyError, IndexError, TypeError, ValueError):
        return None
    return max(LEAST_US, roofline.floor_us(card, macs, traffic, matrix=size == 2))


def _stride_and_dilation(name: str, arguments: Mapping[str, Any]) -> str:
    """What tells two convolutions of the same shapes apart, where it isn't 1."""
    inputs = arguments.get("Concrete Inputs") or []
    if name != "aten::convolution" or len(inputs) < 6:
        return ""
    found = (("stride", inputs[3]), ("dilation", inputs[5]))
    return "".join(
        f", {what} {text.strip('[]').replace(', ', 'x')}" for what, text in found if set(text) - set("[1, ]")
    )


def _numbers(text: str) -> Any:
    return json.loads(text.lower())


def _spread(values: list[int], count: int) -> list[int]:
    return values * count if len(values) == 1 else values
