"""Where things are in the results folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Results:
    """The results folder. Files that Snakemake knows are marked with a star; the others it can't delete.

    Args:
        root: the folder.
    """

    root: Path

    @property
    def settings(self) -> Path:
        """The settings of the last run, which every job reads."""
        return self.root / "plan" / "settings.json"

    @property
    def listing(self) -> Path:
        """* The files of the corpus, listed once a run, in the main process."""
        return self.root / "plan" / "listing.tsv"

    @property
    def digests(self) -> Path:
        """Digest and pages of every file seen, so that only a changed file is opened to plan."""
        return self.root / "plan" / "digests.tsv"

    @property
    def corpus(self) -> Path:
        """* Every file of the corpus, with its digest and its shard."""
        return self.root / "plan" / "corpus.tsv"

    @property
    def index(self) -> Path:
        """* The live shards."""
        return self.root / "plan" / "index.tsv"

    @property
    def shards(self) -> Path:
        """The folder of all shards ever planned, one immutable table each."""
        return self.root / "plan" / "shards"

    def shard(self, shard: str) -> Path:
        """The digests of a shard; it never changes."""
        return self.shards / f"{shard}.tsv"

    def paths(self, shard: str) -> Path:
        """Where the documents of a shard are now; it follows renames without touching the shard."""
        return self.root / "plan" / "paths" / f"{shard}.tsv"

    def work(self, shard: str) -> Path:
        """The folder of a shard's journal, progress and receipt."""
        return self.root / "shards" / shard

    def receipt(self, shard: str) -> Path:
        """* What was done for a shard."""
        return self.work(shard) / "receipt.json"

    def passing(self, shard: str) -> Path:
        """Digests that failed for a reason of the moment; the next plan gives them another shard."""
        return self.work(shard) / "passing.tsv"

    @property
    def store(self) -> Path:
        """The folder of extracted documents, by settings and digest."""
        return self.root / "store"

    @property
    def regions(self) -> Path:
        """The folder of the regions that a detector has found, by its settings and digest."""
        return self.root / "regions"

    def layout(self, shard: str) -> Path:
        """* What the detector did for a shard."""
        return self.work(shard) / "layout.json"

    @property
    def markdown(self) -> Path:
        """The published tree."""
        return self.root / "markdown"

    @property
    def summary(self) -> Path:
        """The folder of the summary."""
        return self.root / "summary"
