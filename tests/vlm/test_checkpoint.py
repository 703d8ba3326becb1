"""The tiny checkpoint reads its pages right, and fails on the others as it should, in transformers and in vLLM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pages import LOOP

from vllm_environment import run

HERE = Path(__file__).parent
CHECKPOINT = HERE / "checkpoint"


Answers = dict[str, list[dict[str, Any]]]


class Reader:
    """Reads documents in the environment, each time in processes of their own."""

    def __init__(self, python: str, environment: dict[str, str], documents: Path, folder: Path) -> None:
        self.python, self.environment, self.documents, self.folder = python, environment, documents, folder
        self.truth: Answers = json.loads((documents / "truth.json").read_text())

    def run(self, script: str, *arguments: str, timeout: float = 1200) -> None:
        run([self.python, str(HERE / script), *arguments], self.folder / "log", timeout=timeout, **self.environment)

    def read(self, backend: str, *names: str, checkpoint: Path = CHECKPOINT) -> Answers:
        """Read documents given as ``name:dpi``; the answers by the same names."""
        out = self.folder / "out.json"
        documents = [f"{self.documents}/{name.replace(':', '.pdf:')}" for name in names]
        self.run("read_pages.py", backend, str(checkpoint), str(out), *documents)
        return json.loads(out.read_text())


@pytest.fixture
def reader(python: str, environment: dict[str, str], documents: Path, tmp_path: Path) -> Reader:
    return Reader(python, environment, documents, tmp_path)


def fails_as_it_should(found: list[dict[str, Any]], truth: list[dict[str, Any]]) -> None:
    """No boxes, a block that ran to the limit without an end, no layout: and the title beside the block is right."""
    garbage, around, empty = found
    assert [garbage, empty] == [truth[0], truth[2]]
    title, endless = around["blocks"]
    assert around["layout"] == truth[1]["layout"] and title == truth[1]["blocks"][0]
    assert endless["content"].startswith(LOOP[:96]) and len(endless["content"]) > 3000


def test_the_documents_are_the_same_bytes_each_time(documents: Path, tmp_path: Path) -> None:
    import pages

    pages.write(tmp_path)
    for path in documents.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_the_truth_is_what_the_layout_says(documents: Path) -> None:
    truth = json.loads((documents / "truth.json").read_text())
    assert [len(page["blocks"]) for page in truth["fixture"]] == [4, 6, 4, 5, 4]
    for page in truth["fixture"]:
        assert [line.count("<|box_start|>") for line in page["layout"].split("\n")] == [1] * len(page["blocks"])
    assert [page["layout"].count("<|box_start|>") for page in truth["failing"]] == [0, 2, 0]


def test_the_checkpoint_is_small() -> None:
    assert sum(path.stat().st_size for path in CHECKPOINT.iterdir()) < 1_300_000


@pytest.mark.slow
@pytest.mark.vllm
def test_transformers_reads_every_block_right(reader: Reader) -> None:
    found = reader.read("transformers", "fixture:200", "fixture:150", "failing:200")
    assert found["fixture:200"] == found["fixture:150"] == reader.truth["fixture"]
    fails_as_it_should(found["failing:200"], reader.truth["failing"])


@pytest.mark.slow
@pytest.mark.vllm
def test_vllm_reads_every_block_right_in_spite_of_minerus_penalties(reader: Reader) -> None:
    found = reader.read("vllm", "fixture:200", "fixture:150", "failing:200")
    assert found["fixture:200"] == found["fixture:150"] == reader.truth["fixture"]
    fails_as_it_should(found["failing:200"], reader.truth["failing"])


@pytest.mark.slow
@pytest.mark.vllm
def test_the_script_still_makes_a_working_checkpoint(reader: Reader, tmp_path: Path) -> None:
    anew = tmp_path / "anew"
    reader.run("train_checkpoint.py", str(reader.documents), str(anew), timeout=3600)
    assert reader.read("transformers", "fixture:200", checkpoint=anew) == {"fixture:200": reader.truth["fixture"]}
