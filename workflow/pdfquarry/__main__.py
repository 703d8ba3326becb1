"""``python -m pdfquarry <step>``: what the rules call, and a person can. Exit codes are in errors.py."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sys
from pathlib import Path

from pdfquarry.errors import ConfigurationError, EnvironmentFault, QuarryError
from pdfquarry.results import Results
from pdfquarry.settings import Settings, load


def main(arguments: list[str] | None = None) -> int:
    """Run one step and return the exit code."""
    parser = argparse.ArgumentParser(prog="pdfquarry", description="The steps of the PDF Quarry workflow.")
    steps = ["environment", "plan", "layout", "extract", "publish", "summarize", "check", "profile", "patches"]
    parser.add_argument("step", choices=steps)
    parser.add_argument("--results", type=Path, help="the results folder of the run")
    parser.add_argument("--shard", help="the shard to work on")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="processes to use")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="patches: write them as diffs for the files")
    options = parser.parse_args(arguments)
    if options.step == "patches":
        return patches(options.write)
    if not options.results:
        parser.error(f"{options.step} needs --results")
    if options.step in ("layout", "extract") and not options.shard:
        parser.error(f"{options.step} needs --shard")
    _die_with_parent()
    results = Results(options.results)
    try:
        print(_run(options.step, results, _settings(results), options), flush=True)
    except QuarryError as error:
        for line in str(error).splitlines():
            print(f"pdfquarry {options.step}: {line}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        return 130  # as a shell says it; what is finished is in the journal
    return 0


def patches(folder: Path | None) -> int:
    """List the patches for GPU work: needed here, active, why; or write them as diffs into ``folder``."""
    from pdfquarry_kernels.patches import list_patches, write_guide_patch

    if folder is None:
        for patch in list_patches():
            needed = {True: "needed", False: "not needed", None: "unknown"}[patch.needed]
            print(f"{patch.name}: {needed}, {'active' if patch.active else 'not active'}: {patch.why}")
        return 0
    try:
        for path in write_guide_patch(folder):
            print(path)
    except (ValueError, OSError) as error:
        print(f"pdfquarry patches: {error}", file=sys.stderr)
        return EnvironmentFault.code
    return 0


def _run(step: str, results: Results, settings: Settings, options: argparse.Namespace) -> str:
    """Run a step; return what it did in a line. Imports are here since a step needs few of the packages."""
    if step == "environment":
        from pdfquarry.environment import environment

        return f"the embedded engine works; arch {environment(results, settings)}"
    if step == "profile":
        from pdfquarry.profiling import profile

        return profile(results, settings)
    if step == "plan":
        from pdfquarry.plan import plan

        planned = plan(results, settings.pages_per_shard, options.threads)
        return (
            f"{planned.files} files, {planned.opened} opened, {planned.documents} new documents "
            f"in {planned.shards} new shards"
        )
    if step == "layout":
        from pdfquarry.layout import layout

        looked = layout(results, options.shard, settings, options.threads)
        return f"{looked.documents} documents, {looked.looked_at} of them looked at now, in {looked.seconds:.1f} s"
    if step == "extract":
        from pdfquarry.extract import extract

        receipt = extract(results, options.shard, settings, options.threads)
        return f"{len(receipt.documents)} documents, {receipt.extracted} of them read now, in {receipt.seconds:.1f} s"
    if step == "publish":
        from pdfquarry.publish import publish

        done = publish(results, settings.output_digest(), list(settings.formats))
        return f"{done.documents} documents, {done.written} folders written, {done.removed} removed"
    from pdfquarry.summarize import check, summarize

    if step == "summarize":
        return summarize(results)
    check(results)
    return "no document failed"


def _settings(results: Results) -> Settings:
    """Return the settings that the run has written for its jobs."""
    try:
        return load(json.loads(results.settings.read_bytes())["settings"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{results.settings}: missing or damaged; snakemake writes it") from error


def _die_with_parent() -> None:
    """Let the kernel end this job when Snakemake is gone, so that a killed run leaves nothing at work."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


if __name__ == "__main__":
    sys.exit(main())
