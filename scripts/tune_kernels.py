"""Find the fastest kernel configurations for this card and write them where they are looked up.

    python scripts/tune_kernels.py                      # tune for the card at hand
    python scripts/tune_kernels.py --model gfx1100      # no card: choose by compiler and model

A run takes some ten minutes. It may be stopped at any time: what is measured is kept beside the
output, and the next run goes on from there.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import triton

from pdfquarry_kernels import configs
from pdfquarry_kernels.search import Case, Config, Verdict, cases, grid, judge

KEEP_DEFAULT = 1.02  # another configuration must be this much faster than the one in use
MODEL_MARGIN = 1.05
FINALISTS = 5
TOLERANCE = {"bf16": 2e-2, "fp16": 3e-3, "fp32": 1e-5}  # of the norm, against float64


def say(text: str) -> None:
    print(text, flush=True)


def survivors(pool: ProcessPoolExecutor, case: Case, arch: str, limit: int) -> list[tuple[Config, Verdict]]:
    """The sound configurations of a case, best modelled time first, ``limit`` at most."""
    candidates = list(grid(case, arch))
    verdicts = pool.map(partial(judge, case, arch=arch), candidates, chunksize=4)
    judged = list(zip(candidates, verdicts, strict=True))
    sound = [(config, verdict) for config, verdict in judged if not verdict.faults]
    say(f"  {len(candidates)} configurations, {len(sound)} without spills or other faults")
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


def tune_case(case: Case, candidates: list[Config], default: Config, journal: Journal) -> dict[str, Any]:
    """Measure the candidates of one case beside torch's own ways, and give the entry."""
    from pdfquarry_kernels.problems import Problem

    problem = Problem(case)
    times: dict[str, float] = {}
    for number, config in enumerate([*candidates, default], 1):
        name = json.dumps(config, sort_keys=True)
        key = f"{case.op} {case.dtype} {case.shape} {name}"
        times[name] = journal.time(key, partial(problem.checked_us, config, TOLERANCE[case.dtype]))
        if sys.stderr.isatty():
            print(f"\r  {number}/{len(candidates) + 1} timed", end="", file=sys.stderr)
    times = {name: us for name, us in times.items() if us == us}
    if not times:
        raise SystemExit(f"{case.op}: no configuration gave the right result on this card")
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


def model_case(case: Case, pool: ProcessPoolExecutor, arch: str) -> dict[str, Any]:
    """The entry that compiler and model give, without a card."""
    sound = survivors(pool, case, arch, limit=1000)
    if not sound:
        raise SystemExit(f"{case.op} {case.dtype}: every configuration has a fault on {arch}")
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


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path, help="directory (default: the user's cache)")
    parser.add_argument("--model", metavar="ARCH", help="choose by compiler and model, no card")
    parser.add_argument("--limit", type=int, default=60, help="configurations to time a case")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="compilations at a time")
    options = parser.parse_args(arguments)
    document: dict[str, Any] = {"schema": configs.SCHEMA, "triton": triton.__version__}
    if options.model:
        arch = options.model
        document |= {"arch": arch, "evidence": "compiler model"}
    else:
        import torch

        from pdfquarry_kernels.dispatch import arch_of

        if not torch.cuda.is_available():
            raise SystemExit("no GPU: name an architecture with --model to choose without one")
        device = torch.device("cuda", torch.cuda.current_device())
        arch = arch_of(device)
        document |= {"arch": arch, "evidence": "measured", "torch": torch.__version__}
        document |= {"device": torch.cuda.get_device_name(device), "rocm": torch.version.hip}
    path = (options.output or configs.user_directory()) / f"{arch}.json"
    journal = Journal(path.with_suffix(".journal"), document)
    entries = []
    everything = list(cases())
    with ProcessPoolExecutor(options.jobs) as pool:
        for number, case in enumerate(everything, 1):
            say(f"[{number}/{len(everything)}] {case.op} {case.dtype} {case.shape}")
            if options.model:
                entries.append(model_case(case, pool, arch))
            else:
                sound = [config for config, _ in survivors(pool, case, arch, options.limit)]
                entries.append(tune_case(case, sound, default_of(case, arch), journal))
    document |= {"date": datetime.now(UTC).date().isoformat()}
    write_atomically(path, document | {"entries": list(with_catch_all(entries))})
    journal.path.unlink(missing_ok=True)
    say(f"written: {path}")


if __name__ == "__main__":
    main()
