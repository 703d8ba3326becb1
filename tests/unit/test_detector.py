"""Pages come one by one and leave with their regions: in batches of one shape, and each page answers for itself."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import zipfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import doclayout
from pdfquarry.engine import yolo
from pdfquarry.engine.detector import PATIENCE, Batcher, Detector
from pdfquarry.engine.regions import CLASSES, Region
from pdfquarry.errors import EnvironmentFault

A4, LETTER = (1654, 2339), (1700, 2200)
POISON = 7


class StandIn:
    """A model that finds one paragraph a page, at a height that the page's first pixel tells.

    While ``gate`` is closed a batch waits for it; pages whose first pixel is ``POISON`` fail.
    """

    def __init__(self) -> None:
        self.image_size = 1024
        self.names = dict(enumerate(CLASSES))
        self.batches: list[list[int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.began = threading.Event()

    def boxes(self, images: list[Image.Image], confidence: float) -> list[Any]:
        assert len({yolo.input_shape(image.size, self.image_size) for image in images}) == 1
        marks = [image.getpixel((0, 0))[0] for image in images]
        self.batches.append(marks)
        self.began.set()
        assert self.gate.wait(30)
        if POISON in marks:
            raise RuntimeError("out of\nmemory")
        rows = []
        for image, mark in zip(images, marks, strict=True):
            top = image.height * mark / 1000
            rows.append(np.array([[0, top, image.width, top + image.height / 2, 0.8, 1]], np.float32))
        return rows

    def facts(self) -> dict[str, Any]:
        return {"patched_blocks": 8}


def page(mark: int, size: tuple[int, int] = A4) -> Image.Image:
    return Image.new("RGB", size, (mark, 0, 0))


def mark_of(regions: list[Region]) -> int:
    return round(regions[0]["bbox"][1] * 1000)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    model = StandIn()
    monkeypatch.setattr(yolo, "load", lambda *arguments: model)
    return model


def make(batch: int = 8) -> Detector:
    return Detector(Path("weights.pt"), "cpu", batch=batch)


def within(seconds: float, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(asyncio.wait_for(work(), seconds))


# Batches of a list


def test_results_come_in_the_order_of_the_pages_and_batches_have_one_shape(model: StandIn) -> None:
    sizes = [A4, LETTER, A4, A4, LETTER, A4]
    found = make(batch=3).detect([page(mark, size) for mark, size in enumerate(sizes, 10)])
    assert list(map(mark_of, found)) == [10, 11, 12, 13, 14, 15]
    assert model.batches == [[10, 12, 13], [15], [11, 14]]


def test_scans_that_differ_by_a_pixel_share_a_batch(model: StandIn) -> None:
    make().detect([page(10, (1654, 2339)), page(11, (1655, 2338)), page(12, (1653, 2340))])
    assert model.batches == [[10, 11, 12]]


def test_a_region_is_a_part_of_the_page_and_says_its_type_and_score(model: StandIn) -> None:
    (one,) = make().detect([page(100)])[0]
    assert one == {
        "type": "text",
        "bbox": pytest.approx([0, 0.1, 1, 0.6], abs=1e-4),
        "angle": 0,
        "score": pytest.approx(0.8),
    }
    assert all(type(value) is float for value in one["bbox"])


def test_no_pages_are_no_batch(model: StandIn) -> None:
    assert make().detect([]) == [] and model.batches == []


def test_the_receipt_has_what_ran_and_how_much(model: StandIn) -> None:
    one = make(batch=2)
    one.detect([page(mark) for mark in range(10, 15)])
    state = one.state()
    assert (state["pages"], state["batches"], state["patched_blocks"], state["confidence"]) == (5, 3, 8, 0.1)
    assert state["seconds"] >= 0 and state["image_size"] == 1024


def test_a_page_too_narrow_for_any_detector_is_named(model: StandIn) -> None:
    with pytest.raises(ValueError, match=r"1 x 5000 pixels"):
        make().detect([page(10, (1, 5000))])


# Pages one by one


def test_what_waits_while_a_batch_runs_is_the_next_batch(model: StandIn) -> None:
    async def work() -> list[int]:
        batcher = Batcher(make(batch=4))
        model.gate.clear()
        tasks = [asyncio.create_task(batcher.regions(page(10)))]
        await asyncio.to_thread(model.began.wait, 30)  # the loop is free while the batch runs
        tasks += [asyncio.create_task(batcher.regions(page(mark))) for mark in range(11, 17)]
        await asyncio.sleep(0)
        model.gate.set()
        found = await asyncio.gather(*tasks)
        await batcher.close()
        return list(map(mark_of, found))

    assert within(60, work) == list(range(10, 17))
    assert model.batches == [[10], [11, 12, 13, 14], [15, 16]]


def test_the_largest_group_goes_first_and_nobody_starves(model: StandIn) -> None:
    async def work() -> None:
        batcher = Batcher(make(batch=2))
        model.gate.clear()
        tasks = [asyncio.create_task(batcher.regions(page(100)))]
        await asyncio.to_thread(model.began.wait, 30)
        tasks.append(asyncio.create_task(batcher.regions(page(200, LETTER))))
        tasks += [asyncio.create_task(batcher.regions(page(mark))) for mark in range(101, 121)]
        await asyncio.sleep(0)
        model.gate.set()
        await asyncio.gather(*tasks)
        await batcher.close()

    within(60, work)
    assert model.batches[1] == [101, 102]
    assert model.batches.index([200]) == 1 + PATIENCE
    assert sorted(mark for batch in model.batches for mark in batch) == [*range(100, 121), 200]


def test_a_poisoned_page_costs_itself_only(model: StandIn) -> None:
    async def work() -> list[Any]:
        batcher = Batcher(make())
        marks = [10, 11, POISON, 12]
        found = await asyncio.gather(*[batcher.regions(page(mark)) for mark in marks], return_exceptions=True)
        after = await batcher.regions(page(13))
        await batcher.close()
        return [*found, after]

    found = within(60, work)
    assert isinstance(found[2], RuntimeError)
    assert [mark_of(regions) for index, regions in enumerate(found) if index != 2] == [10, 11, 12, 13]


def test_a_page_that_nobody_waits_for_any_more_is_not_run(model: StandIn) -> None:
    async def work() -> None:
        batcher = Batcher(make())
        model.gate.clear()
        tasks = [asyncio.create_task(batcher.regions(page(mark))) for mark in (10, 11)]
        await asyncio.to_thread(model.began.wait, 30)
        late = [asyncio.create_task(batcher.regions(page(mark))) for mark in (12, 13)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        late[0].cancel()
        await asyncio.sleep(0)
        model.gate.set()
        assert [mark_of(await task) for task in (tasks[0], late[1])] == [10, 13]
        await batcher.close()

    within(60, work)
    assert model.batches == [[10, 11], [13]]


def test_closing_cancels_who_waits_and_answers_who_runs(model: StandIn) -> None:
    async def work() -> list[Any]:
        batcher = Batcher(make())
        model.gate.clear()
        tasks = [asyncio.create_task(batcher.regions(page(10)))]
        await asyncio.to_thread(model.began.wait, 30)
        tasks.append(asyncio.create_task(batcher.regions(page(11, LETTER))))
        await asyncio.sleep(0)
        closing = asyncio.create_task(batcher.close())
        await asyncio.sleep(0)
        model.gate.set()
        await closing
        return await asyncio.gather(*tasks, return_exceptions=True)

    ran, waited = within(60, work)
    assert mark_of(ran) == 10 and isinstance(waited, asyncio.CancelledError)
    assert model.batches == [[10]]


# What can't be loaded


def weights(folder: Path, name: str = "weights.pt", pickle: bytes = b"...YOLOv10DetectionModel...") -> Path:
    with zipfile.ZipFile(folder / name, "w") as archive:
        archive.writestr("weights/data.pkl", pickle)
    return folder / name


def refusal(path: Path) -> str:
    with pytest.raises(EnvironmentFault) as raised:
        Detector(path, "cpu")
    text = str(raised.value)
    assert "\n" not in text and len(text) < 400
    return text


def test_a_missing_package_is_one_line_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install doclayout-yolo==0.0.4 huggingface_hub" in refusal(weights(tmp_path))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that can't be imported, with a side effect that would betray that it was."""
    folder = tmp_path / "packages/doclayout_yolo"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("import os\nos.environ['SET_BY_IMPORT'] = '1'\nimport no_such_cv2\n")
    monkeypatch.syspath_prepend(str(folder.parent))
    return folder


def test_what_is_no_checkpoint_is_told_before_anything_is_unpickled(tmp_path: Path, package: Path) -> None:
    assert "no such file" in refusal(tmp_path / "nothing.pt")
    (tmp_path / "text.pt").write_text("not found")
    wrong = [tmp_path / "text.pt", weights(tmp_path, "other.pt", b"Qwen2VL"), weights(tmp_path, "weights.onnx")]
    for path in wrong:
        assert "not a checkpoint of DocLayout-YOLO" in refusal(path)


def test_a_broken_package_is_one_line_and_leaves_the_environment_alone(
    tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("PDFQUARRY_PATCHES", "off")
    before = dict(os.environ)
    assert "No module named 'no_such_cv2'" in refusal(weights(tmp_path))
    assert dict(os.environ) == before


def test_weights_of_other_classes_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    model = StandIn()
    model.names = {0: "title", 1: "LetterSign"}
    monkeypatch.setattr(yolo, "load", lambda *arguments: model)
    text = refusal(Path("d4la.pt"))
    assert "LetterSign" in text and "DocStructBench" in text


# The real package, with random weights


@pytest.mark.slow
def test_the_real_network_finds_the_same_in_any_batch_patched_or_not(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = doclayout.run(Path(__file__).with_name("detector_try.py"), tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    from pdfquarry_kernels.dilated_block import IMPLEMENTATIONS

    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("FOUND"))[6:])
    assert min(found["regions"]) > 5 and found["rows"] > 20 and len(found["types"]) > 5
    assert found["batches"] == 4  # six pages, three of them of one shape
    assert found["one by one"] < 1e-4 and found["patched"] < 1e-4
    library, ours = found["states"]
    assert (library["dilated_blocks"], library["patched_blocks"]) == (8, 0)
    assert (ours["patched_blocks"], ours["implementation"], ours["patch_errors"]) == (8, "native", [])
    assert library["implementation"] == "library" and set(found["implementations"]) <= set(IMPLEMENTATIONS)
    assert ours["image_size"] == 256  # what the checkpoint was trained with
    # Pages that we bring to the network's input come out as those that predict() does: pixels of the page.
    assert found["shapes"] == 0 and found["as predict()"] < 0.1
    assert not found["counted by the library"]
    assert found["environment kept"] and found["environment after"]
