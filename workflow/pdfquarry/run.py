"""A run, as the Snakefile sees it: settings, listing, lock, progress and last words.

Snakemake reads the Snakefile in the main process and again in every job, so what must happen once asks ``main``.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import filelock

from pdfquarry import corpus, engine_process, files, gpus
from pdfquarry.environment import versions
from pdfquarry.errors import BusyError, QuarryError
from pdfquarry.plan import INDEX_COLUMNS
from pdfquarry.progress import Display
from pdfquarry.results import Results
from pdfquarry.settings import Settings, load


@dataclass
class Run:
    """One run of the workflow.

    Args:
        settings: the validated settings.
        results: the results folder.
        versions: the packages that a run uses; the environment is proven again when one changes.
        gpus: the GPUs that jobs may take at a time; 0 when no job takes one.
    """

    settings: Settings
    results: Results
    versions: dict[str, str]
    gpus: int = 0
    _display: Display | None = field(default=None, repr=False)
    _lock: filelock.FileLock | None = field(default=None, repr=False)
    _started: float = field(default=0.0, repr=False)

    def start(self) -> list[str]:
        """Take the results folder for this run, show its progress, and return what to say before it begins.

        Raises BusyError when another run has the folder.
        """
        self._started = time.time()
        path = self.results.root / "run.lock"
        self._lock = filelock.FileLock(path)
        try:
            self._lock.acquire(blocking=False)
        except filelock.Timeout:
            raise BusyError(f"{self.results.root}: another run is at work in this folder; wait for it to end") from None
        words = changed_settings(self.results, self.settings)
        state = {"output": self.settings.output_digest(), "settings": self.settings.model_dump(mode="json")}
        files.write_json(self.results.settings, state)
        self._display = Display(self.results, self.settings.progress_seconds)
        self._display.start()
        return [words] if words else []

    def end(self, success: bool) -> list[str]:
        """Give the results folder back and return the run's last words."""
        if self._display:
            self._display.stop()
        if self._lock:
            self._lock.release()
        if self.gpus:
            try:
                engine_process.stop_all()
            except QuarryError as error:
                print(error, file=sys.stderr)
        if not success:
            logs = self.results.root / "logs"
            return [*_said(logs, self._started), f"PDF Quarry: the run did not end well; logs are in {logs}"]
        from pdfquarry.summarize import closing_words

        try:
            return closing_words(self.results).splitlines()
        except (OSError, ValueError):
            return []  # a target before the summary was asked for


def _said(logs: Path, since: float) -> list[str]:
    """Return the lines that jobs of this run have ended with; Snakemake shows their logs only when it is not quiet."""
    lines: dict[str, None] = {}
    for path in sorted(logs.rglob("*.log")):
        if path.stat().st_mtime >= since:
            text = path.read_text(encoding="utf-8", errors="replace")
            lines |= dict.fromkeys(re.findall(r"^pdfquarry [a-z]+: .*$", text, re.MULTILINE))
    return list(lines)[:10]


def open_run(config: Mapping[str, Any], package: str, main: bool, deployed: bool = False) -> Run:
    """Check the settings and, in the main process, list the corpus.

    Jobs inherit the environment that is set here: they run in this interpreter, or in that of Snakemake's software
    environment where one is ``deployed``; they import pdfquarry from the folder ``package``, and nothing from the
    folder they run in, where kernels/ could be taken for the package of that name. None of it is a parameter of a
    rule, since another interpreter is no reason to do anything again.

    Raises ConfigurationError or CorpusError with a line for each problem.
    """
    kernels = str(Path(package).parent / "kernels")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [package, kernels, os.environ.get("PYTHONPATH")]))
    os.environ["PYTHONSAFEPATH"] = "1"
    os.environ["QUARRY_PYTHON"] = "python" if deployed else sys.executable
    settings = load(config)
    results = Results(Path(settings.results))
    if main:
        corpus.write_listing(results.listing, corpus.find(settings.corpus))
    return Run(settings, results, versions(), _cards(settings) if main else 0)


def _cards(settings: Settings) -> int:
    """Return how many GPUs jobs of this run may take at a time."""
    if not settings.on_gpu and settings.detected != "doclayout-yolo":
        return 0
    if settings.arch == "cpu":
        return 1
    if settings.gpus != "auto":
        return len(settings.gpus)
    found = gpus.usable(gpus.find())
    return max(1, sum(settings.arch in ("auto", gpu.arch) for gpu in found))


def live_shards(index: str) -> list[str]:
    """Return the shards of an index."""
    return [row[0] for row in files.read_table(Path(index), INDEX_COLUMNS)]


def changed_settings(results: Results, settings: Settings) -> str:
    """Return what a changed setting will cost, in a sentence, or an empty string when the output stays the same."""
    try:
        before = json.loads(results.settings.read_bytes())
        if before["output"] == settings.output_digest():
            return ""
        old = load(before["settings"])
    except (OSError, ValueError, KeyError, QuarryError):
        return ""
    keys = ("engine", "detected", "ocr_model", "vlm", "detector")
    names = [key for key in keys if getattr(old, key) != getattr(settings, key)]
    names += ["limits.page_pixels"] * (old.limits.page_pixels != settings.limits.page_pixels)
    what = ", ".join(names).replace("ocr_model", "languages").replace("detected", "layout") or "the output version"
    return f"PDF Quarry: {what} changed, so every document that was not extracted like this before is extracted now"
