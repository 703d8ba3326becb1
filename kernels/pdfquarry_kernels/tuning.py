"""Tuning: from the candidates of ``search`` to the entries of a configuration file.

Needs triton; measuring needs torch and the card.
"""

import ctypes
import json
import math
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from pdfquarry_kernels import configs
from pdfquarry_kernels.search import Case, Config, Verdict, grid, judge

KEEP_DEFAULT = 1.02  # another configuration must be this much faster than the one in use
MODEL_MARGIN = 1.05
FINALISTS = 5
QUICK_LIMIT = 12  # configurations to measure a case where minutes count
MOST_PROCESSES = 16


def say(text: str) -> None:
    print(text, flush=True)


def survivors(
    pool: Executor, case: Case, arch: str, limit: int, timeout: float | None = None
) -> list[tuple[Config, Verdict]]:
    """The sound configurations of a case, best modelled time first, ``limit`` at most.

    After ``timeout`` seconds, those of the compiled ones; the order of compilation is then a fixed shuffle, so that a
    part of the grid is a sample of it.
    """
    candidates = list(grid(case, arch))
    if timeout is not None:
        random.Random(0).shuffle(candidates)
    judged: list[tuple[Config, Verdict]] = []
    try:
        for verdict in pool.map(partial(judge, case, arch=arch), candidates, chunksize=4, timeout=timeout):
            judged.append((candidates[len(judged)], verdict))
    except TimeoutError:
        say(f"  {len(judged)} of {len(candidates)} compiled in time")
    sound = [(config, verdict) for config, verdict in judged if not verdict.faults]
    say(f"  {len(judged)} configurations, {len(sound)} without spills or other faults")
    sound.sort(key=lambda pair: pair[1].modelled)
    return sound[:limit]


def default_of(case: Case, arch: str) -> Config:
    """The configuration in use now."""
    size = case.shape[0] if case.op == "patch_embed" else case.shape[0] * case.shape[2] * case.shape[3]
    found = configs.lookup(arch, case.op, case.dtype, case.fixed, size)
    return dict(found.entry["config"])


def pick(times: dict[str, float], default: str) -> str:
    """The fastest, unless the default is within 2 %."""
    best = min(times, key=lambda name: times[name])
    if default in times and times[default] <= KEEP_DEFAULT * times[best]:
        return default
    return best


class Journal:
    """What has been measured so far, one JSON line each; survives a killed run."""

    def __init__(self, path: Path, versions: dict[str, Any]) -> None:
        self.path = path
        self.versions = versions
        self.known: dict[str, float] = {}
        text = path.read_text() if path.exists() else ""
        for line in text.splitlines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue  # cut short by a kill
            if entry["versions"] == versions:
                self.known[entry["key"]] = entry["us"]
        if text and not text.endswith("\n"):
            path.write_text(text + "\n")

    def time(self, key: str, measure: Callable[[], float]) -> float:
        """The kept time of ``key``, or ``measure()``; nan where it fails."""
        if key not in self.known:
            self.known[key] = measure()
            entry = {"key": key, "us": self.known[key], "versions": self.versions}
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:
                file.write(json.dumps(entry) + "\n")
        return self.known[key]


def tune_case(
    case: Case, candidates: list[Config], default: Config, journal: Journal, until: float = math.inf
) -> dict[str, Any]:
    """Measure the candidates of one case beside torch's own ways, and give the entry.

    Past ``until`` (``time.monotonic``) no further candidate is begun; the default is always measured.
    """
    from pdfquarry_kernels.problems import TOLERANCE, Problem

    problem = Problem(case)
    times: dict[str, float] = {}
    for number, config in enumerate([default, *candidates], 1):
        if number > 1 and time.monotonic() > until:
            break
        name = json.dumps(config, sort_keys=True)
        key = f"{case.op} {case.dtype} {case.shape} {name}"
        times[name] = journal.time(key, partial(problem.checked_us, config, TOLERANCE[case.dtype]))
        if sys.stderr.isatty():
            print(f"\r  {number}/{len(candidates) + 1} timed", end="", file=sys.stderr)
    times = {name: us for name, us in times.items() if us == us}
    if not times:
        raise ValueError(f"{case.op}: no configuration gave the right result on this card")
    default_name = json.dumps(default, sort_keys=True)
    near = [name for name, us in times.items() if us <= min(times.values()) * KEEP_DEFAULT]
    finalists = sorted(near, key=lambda name: times[name])[:FINALISTS]
    if default_name in near and default_name not in finalists:
        finalists.append(default_name)
    rounds = [{name: problem.us(json.loads(name)) for name in finalists} for _ in range(3)]
    medians = {name: sorted(r[name] for r in rounds)[1] for name in finalists}
    winner = pick(medians, default_name)
    rivals = problem.rivals_us()
    best_rival = min(rivals, key=lambda name: rivals[name])
    # The same margin between torch's way and ours: ours stays unless torch's is clearly faster.
    use = best_rival if rivals[best_rival] * KEEP_DEFAULT < medians[winner] else problem.ours
    beside = ", ".join(f"{name} {us:.1f}" for name, us in rivals.items())
    say(f"  {problem.ours} {medians[winner]:.1f} us; {beside}; in use: {use}")
    return entry_of(case, use, json.loads(winner)) | {
        "us": round(medians[winner], 2),
        "rivals_us": {name: round(us, 2) for name, us in rivals.items()},
    }


def most_robust(sound: list[tuple[Config, Verdict]], arch: str) -> tuple[Config, Verdict]:
    """Of what the model cannot tell apart (5 %), what rereads least and leaves registers free.

    A quarter of them: another version of the compiler then does not spill at once.
    """
    limit = (512 if arch.startswith("gfx9") else 256) * 3 // 4
    near = [pair for pair in sound if pair[1].modelled <= MODEL_MARGIN * sound[0][1].modelled]
    roomy = [pair for pair in near if pair[1].registers <= limit]
    return min(roomy or near, key=lambda pair: (pair[1].reread, pair[1].registers))


def model_case(case: Case, pool: Executor, arch: str) -> dict[str, Any]:
    """The entry that compiler and model give, without a card."""
    sound = survivors(pool, case, arch, limit=1000)
    if not sound:
        raise ValueError(f"{case.op} {case.dtype}: every configuration has a fault on {arch}")
    config, verdict = most_robust(sound, arch)
    # Torch's linear is a tuned library GEMM on the data-centre cards, and its fp32 needs no
    # matrix instruction; nothing that a model says could speak against it there.
    linear = case.op == "patch_embed" and (case.dtype == "fp32" or arch.startswith("gfx9"))
    use = "linear" if linear else "triton_gemm" if case.op == "patch_embed" else "triton"
    say(f"  modelled {verdict.modelled:.1f} us, floor {verdict.floor:.1f} us; in use: {use}")
    return entry_of(case, use, config) | {"modelled_us": round(verdict.modelled, 2)}


def entry_of(case: Case, use: str, config: Config) -> dict[str, Any]:
    return {
        "op": case.op,
        "dtypes": case.dtypes,
        "shape": case.fixed,
        "up_to": case.up_to,
        "use": use,
        "config": config,
    }


def with_catch_all(entries: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The entries without what repeats the next bucket; the last patch embedding for any N, K."""
    for entry, following in zip(entries, [*entries[1:], {}], strict=True):
        same = all(entry[key] == following.get(key) for key in ("op", "dtypes", "shape", "use", "config"))
        if not same:
            yield entry
        if entry["op"] == "patch_embed" and entry["up_to"] is None:
            yield {key: value for key, value in entry.items() if not key.endswith("us")} | {"shape": {}}


def write_atomically(path: Path, document: dict[str, Any]) -> None:
    """Write aside, flush to disk, rename: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, suffix=".tmp") as file:
        json.dump(document, file, indent=1, sort_keys=True)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def tune_quickly(cases: Sequence[Case], arch: str, seconds: float, journal: Journal) -> list[dict[str, Any]]:
    """Entries for a few cases in about ``seconds``: half of it to compile candidates, half to measure the best of them.

    Raises:
        ValueError: no card is known for the architecture, or no configuration gave the right result.
    """
    until = time.monotonic() + seconds
    # Spawned, since this process may hold the GPU, whose threads a fork would lose. More would only load torch.
    processes, spawn = min(MOST_PROCESSES, os.cpu_count() or 1), multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, spawn, initializer=_end_with_parent) as pool:
        sound = [survivors(pool, case, arch, QUICK_LIMIT, seconds / 2 / len(cases)) for case in cases]
        pool.shutdown(cancel_futures=True)
    entries = []
    for number, (case, found) in enumerate(zip(cases, sound, strict=True)):
        share = (until - time.monotonic()) / (len(cases) - number)
        default = default_of(case, arch)
        entries.append(tune_case(case, [config for config, _ in found], default, journal, time.monotonic() + share))
    return entries


def _end_with_parent() -> None:
    """Let the kernel end a compiling process whose parent was killed; it would wait for work for ever."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
