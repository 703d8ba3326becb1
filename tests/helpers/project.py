"""A working folder in which tests run Snakemake for real."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pandas

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Ended:
    """What a run did."""

    code: int
    text: str
    rules: list[str]
    extracted: int


class Project:
    """A working folder with a corpus ``c`` and results in ``results``.

    Args:
        folder: the working folder.
        repository: where the Snakefile is.
    """

    def __init__(self, folder: Path, repository: Path = ROOT) -> None:
        self.folder, self.repository = folder, repository
        self.corpus, self.results = folder / "c", folder / "results"
        self.corpus.mkdir(parents=True, exist_ok=True)

    def command(self, *arguments: str, cores: int = 2, **config: object) -> list[str]:
        settings = {"corpus": "c", **config}
        command = [sys.executable, "-m", "snakemake", "-s", str(self.repository / "Snakefile"), "--cores", str(cores)]
        command += ["--directory", str(self.folder), "--quiet", "host", *arguments, "--config"]
        return command + [f"{key}={value}" for key, value in settings.items() if value is not None]

    def start(self, *arguments: str, **config: object) -> subprocess.Popen[str]:
        """Start a run in a process group of its own."""
        command = self.command(*arguments, **config)
        with open(self.folder / "out", "w") as out:
            return subprocess.Popen(command, stdout=out, stderr=out, text=True, start_new_session=True, env=clean_env())

    def run(self, *arguments: str, cores: int = 2, **config: object) -> Ended:
        """Run to the end."""
        before = self.journal()
        command = self.command(*arguments, cores=cores, **config)
        ended = subprocess.run(command, capture_output=True, text=True, timeout=600, env=clean_env())
        text = ended.stdout + ended.stderr
        rules = re.findall(r"^(?:local)?(?:rule|checkpoint) (\w+):", text, flags=re.M)
        # "all" has no work of its own, and Snakemake runs it or not.
        return Ended(ended.returncode, text, sorted(set(rules) - {"all"}), self.journal() - before)

    def journal(self) -> int:
        """Return how many documents have been read so far."""
        lines = [
            line for path in self.results.glob("shards/*/journal.jsonl") for line in path.read_bytes().splitlines()
        ]
        return sum(line.endswith(b"}") for line in lines)

    def table(self) -> pandas.DataFrame:
        """Return documents.parquet."""
        return pandas.read_parquet(self.results / "documents.parquet")

    def states(self) -> dict[str, str]:
        """Return file name -> state, or reason when it failed."""
        table = self.table()
        return {os.path.basename(row.path): row.reason or row.state for row in table.itertuples()}

    def tree(self) -> dict[str, bytes]:
        """Return the published files: path -> bytes. Records hold times and are left out."""
        tree = self.results / "markdown"
        files = [
            path for path in tree.rglob("*") if path.is_file() and path.name not in ("document.json", ".published")
        ]
        return {str(path.relative_to(tree)): path.read_bytes() for path in files}

    def receipts(self) -> list[dict]:
        """Return all receipts."""
        return [json.loads(path.read_bytes()) for path in self.results.glob("shards/*/receipt.json")]


def clean_env() -> dict[str, str]:
    """Return an environment as a user has it: nothing of ours on the path."""
    return {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONSAFEPATH")}
