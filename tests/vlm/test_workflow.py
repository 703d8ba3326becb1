"""The whole workflow with a real vLLM, real servers and transformers, on the tiny checkpoint that knows its pages."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pandas
import pypdfium2
import pytest
import yaml

from pdfquarry.assemble import assemble
from pdfquarry.blocks import raw_blocks
from pdfquarry.embedded import Pages
from pdfquarry.extract import extract
from pdfquarry.plan import read_shard
from pdfquarry.records import DocumentRecord, PageRecord
from pdfquarry.regions import Regions
from pdfquarry.results import Results
from pdfquarry.settings import load
from pdfquarry.store import Store
from pdfquarry_kernels import vllm_plugin
from project import Ended, Project

pytestmark = [pytest.mark.slow, pytest.mark.vllm]

CHECKPOINT = Path(__file__).parent / "checkpoint"
ARGUMENTS = {"enforce_eager": True, "max_model_len": 4096, "max_num_seqs": 8}


class VlmProject(Project):
    """A working folder whose settings are those of an engine."""

    def __init__(self, folder: Path, documents: Path, python: str, environment: dict[str, str]) -> None:
        super().__init__(folder)
        self.documents, self.python, self.environment = documents, python, environment
        self.truth = json.loads((documents / "truth.json").read_text())
        (folder / "locks").mkdir(exist_ok=True)
        os.environ["PDFQUARRY_LOCKS"] = str(folder / "locks")

    def settings(self, engine: str, **vlm: Any) -> None:
        variables = {name: value for name, value in self.environment.items() if name.startswith("VLLM_")}
        settings = {
            "engine": engine,
            "arch": "cpu",
            "pages_per_shard": 200,
            "progress_seconds": 2,
            "environment": {"python": self.python, "variables": variables | {"PDFQUARRY_PATCHES": "force"}},
            "vlm": {"max_tokens": 400, "arguments": ARGUMENTS, "linger_seconds": 30, "stall_seconds": 60}
            | ({} if engine == "http" else {"model": str(CHECKPOINT)})
            | vlm,
        }
        (self.folder / "config").mkdir(exist_ok=True)
        (self.folder / "config" / "config.yaml").write_text(yaml.safe_dump(settings))

    def copies(self, number: int) -> None:
        """Fill the corpus with documents of the fixture's first page and different bytes."""
        page = io.BytesIO()
        with pypdfium2.PdfDocument(self.documents / "fixture.pdf") as fixture, pypdfium2.PdfDocument.new() as one:
            one.import_pages(fixture, [0])
            one.save(page)
        for copy in range(number):
            (self.corpus / f"copy{copy}.pdf").write_bytes(page.getvalue() + b"\n%% %d\n" % copy)

    def pages(self) -> list[dict[str, Any]]:
        return [page for receipt in self.receipts() for one in receipt["documents"] for page in one["pages"]]

    def report(self) -> dict[str, Any]:
        return next(receipt["engine_report"] for receipt in self.receipts() if receipt.get("engine_report"))


@pytest.fixture
def project(
    tmp_path_factory: pytest.TempPathFactory,
    documents: Path,
    python: str,
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[VlmProject]:
    monkeypatch.setenv("PDFQUARRY_LOCKS", "")
    made = VlmProject(tmp_path_factory.mktemp("v"), documents, python, environment)
    yield made
    for pid in engines(made):
        os.kill(pid, signal.SIGKILL)


def processes(words: str) -> list[int]:
    """Return the processes whose command line has these words."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if re.search(words, line) and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return sorted(found)


def engines(project: Project) -> list[int]:
    """Return the engine processes of a project, by the folder of their socket."""
    return processes(rf"engine\.host .*{re.escape(str(project.folder))}")


def expected(project: VlmProject, name: str, folder: Path) -> list[dict[str, Any]]:
    """Return the content list that the truth gives, but for the pictures."""
    pages = [
        raw_blocks([dict(block) for block in page["blocks"]], index == 0)
        for index, page in enumerate(project.truth[name])
    ]
    folder.mkdir()
    assemble(Pages(pages, [PageRecord(page=n + 1, engine="vlm") for n in range(len(pages))]), folder)  # type: ignore[arg-type]
    return without_pictures(folder)


def without_pictures(folder: Path) -> list[dict[str, Any]]:
    items = json.loads((folder / "content_list.json").read_text())
    return [{key: value for key, value in item.items() if key != "img_path"} for item in items]


def published(project: Project, name: str) -> Path:
    return project.results / "markdown" / "c" / f"{name}.pdf"


def check_fixture(project: VlmProject, folder: Path) -> None:
    """Every block of the fixture is exactly right."""
    assert without_pictures(published(project, "fixture")) == expected(project, "fixture", folder)


def wait_for(what: Callable[[], Any], seconds: float = 180) -> Any:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = what()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen")


@contextmanager
def server(project: VlmProject) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A real vLLM server on a free port, healthy."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with started(project, port) as process:
        yield f"http://127.0.0.1:{port}", process


@contextmanager
def started(project: VlmProject, port: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [project.python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(CHECKPOINT)]
    command += ["--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port), "--enforce-eager"]
    command += ["--max-model-len", "4096", "--max-num-seqs", "8", "--api-key", "quarry"]
    command += ["--logits-processors", "mineru_vl_utils:MinerULogitsProcessor"]
    command += ["--limit-mm-per-prompt", '{"image": 1, "video": 0}']
    environ = os.environ | project.environment
    with open(project.folder / f"server-{port}.log", "ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environ, start_new_session=True)

    def healthy() -> bool:
        assert process.poll() is None, Path(log.name).read_text()[-3000:]
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).status == 200
        except OSError:
            return False

    try:
        wait_for(healthy, 300)
        yield process
    finally:
        kill_group(process)


def kill_group(process: subprocess.Popen[Any]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def good(ended: Ended) -> None:
    assert ended.code == 0, ended.text


def test_vllm_reads_every_block_right_and_says_how(project: VlmProject, tmp_path: Path) -> None:
    project.settings("vllm")
    for name in ("fixture", "failing"):
        shutil.copy(project.documents / f"{name}.pdf", project.corpus)
    (project.corpus / "bad.pdf").write_bytes(b"%PDF-1.4 nothing")
    good(project.run())
    assert project.states() == {"fixture.pdf": "done", "failing.pdf": "partial", "bad.pdf": "corrupt"} | {
        "failing.pdf": project.states()["failing.pdf"]
    }
    check_fixture(project, tmp_path / "expected")
    # Each page says who read it and what it cost; a page that failed says that, and what stands in its place.
    (receipt,) = project.receipts()
    by_pages = {len(one["pages"]): one["pages"] for one in receipt["documents"] if one.get("pages")}
    known, failing = by_pages[5], by_pages[3]
    assert all(page["engine"] == page["layout"] == "vlm" for page in known)
    assert all("fallback" not in page and page["tokens_in"] > 100 and page["tokens_out"] > 20 for page in known)
    assert all({"render", "layout", "content", "wait"} == set(page["seconds"]) for page in known)
    assert [page["fallback"] for page in failing] == [["no_regions"], ["length"], ["no_regions"]]
    assert all(page["retries"] >= 2 for page in failing)
    report = project.report()
    assert report["kind"] == "vllm" and report["device"] == "cpu" and report["starts"] == 1
    assert "ours in 1" in report["state"]["patches"] and report["versions"]["mineru-vl-utils"]
    assert report["pages_per_second"] > 0 and report["tokens_out_per_second"] > 0 and report["start_seconds"] > 1
    # The replaced forward ran, in a process that is not the engine's first.
    (folder,) = (project.results / "logs" / "engine").glob("patches-*")
    assert sum(one.calls for one in vllm_plugin.read_status(folder)) > 0
    # Nothing is left over, and nothing is done again.
    assert not engines(project)
    assert project.run().rules == []


def test_transformers_reads_the_same(project: VlmProject, tmp_path: Path) -> None:
    project.settings("transformers")
    shutil.copy(project.documents / "fixture.pdf", project.corpus)
    good(project.run())
    check_fixture(project, tmp_path / "expected")
    pages = project.pages()
    assert all(page["tokens_in"] > 100 and set(page["finish"]) == {"stop"} for page in pages)


def test_a_lingering_engine_serves_all_shards_and_is_gone_with_the_run(project: VlmProject) -> None:
    project.settings("vllm")
    project.copies(9)
    good(project.run(pages_per_shard=3))
    starts = [receipt["engine_report"]["starts"] for receipt in project.receipts()]
    assert len(starts) == 3 and sum(starts) == 1
    assert not engines(project)


def test_a_run_that_is_killed_with_everything_is_finished_by_the_next_to_the_byte(
    project: VlmProject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    project.settings("vllm", linger_seconds=0)
    project.copies(12)
    good(project.run())
    undisturbed = project.tree()
    shutil.rmtree(project.results)
    for victim in ("job", "all"):
        running = project.start()
        wait_for(lambda: project.journal() >= 2)
        if victim == "job":
            for pid in processes(r"pdfquarry extract .*--results results"):
                os.kill(pid, signal.SIGKILL)
            time.sleep(1)
        kill_group(running)
        wait_for(lambda: not engines(project), 60)
        done = project.journal()
        assert done < 12
    ended = project.run()
    good(ended)
    assert project.tree() == undisturbed
    assert ended.extracted <= 12 - done


def test_an_engine_core_that_dies_is_started_again_within_the_job(project: VlmProject) -> None:
    project.settings("vllm")
    project.copies(12)
    running = project.start()
    wait_for(lambda: project.journal() >= 2)
    cores = [pid for pid in processes("EngineCore|VLLM::") if pid]
    assert cores
    for pid in cores:
        os.kill(pid, signal.SIGKILL)
    assert running.wait(timeout=400) == 0, (project.folder / "out").read_text()
    assert all(not page.get("fallback") and page["engine"] == "vlm" for page in project.pages())
    assert project.table()["state"].tolist() == ["done"] * 12
    assert sum(receipt["engine_report"]["starts"] for receipt in project.receipts()) >= 2


def test_servers_are_shared_and_one_that_dies_costs_nothing(
    project: VlmProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINERU_VL_API_KEY", "quarry")
    shutil.copy(project.documents / "fixture.pdf", project.corpus)
    project.copies(12)
    with server(project) as (first, one), server(project) as (second, _):
        project.settings("http", servers=[first, second], stall_seconds=20)
        running = project.start()
        wait_for(lambda: project.journal() >= 2)
        kill_group(one)
        assert running.wait(timeout=400) == 0, (project.folder / "out").read_text()
    check_fixture(project, tmp_path / "expected")
    assert all(page["engine"] == "vlm" and not page.get("fallback") for page in project.pages())


def test_without_any_server_nothing_is_lost_and_the_next_run_goes_on(
    project: VlmProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINERU_VL_API_KEY", "quarry")
    project.copies(12)
    with server(project) as (url, process):
        port = int(url.rsplit(":", 1)[1])
        project.settings("http", servers=[url], stall_seconds=8)
        running = project.start()
        wait_for(lambda: project.journal() >= 2)
        kill_group(process)
        assert running.wait(timeout=400) != 0
        assert "no server has answered" in (project.folder / "out").read_text()
        done = project.journal()
        assert done < 12
    with started(project, port):
        ended = project.run()
        good(ended)
        assert ended.extracted == 12 - done
    assert all(page["engine"] == "vlm" and not page.get("fallback") for page in project.pages())
    assert pandas.unique(project.table()["state"]).tolist() == ["done"]


def test_a_wrong_key_is_one_line_and_fails_no_document(project: VlmProject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINERU_VL_API_KEY", "wrong")
    shutil.copy(project.documents / "fixture.pdf", project.corpus)
    with server(project) as (url, _):
        project.settings("http", servers=[url], stall_seconds=8)
        ended = project.run()
    assert ended.code != 0 and "401" in ended.text and "Traceback" not in ended.text
    assert project.journal() == 0


def read_with_regions(
    project: VlmProject, monkeypatch: pytest.MonkeyPatch, regions: dict[int, list[dict[str, Any]]], **vlm: Any
) -> tuple[DocumentRecord, list[dict[str, Any]]]:
    """Read the fixture with these regions; return its record and its content list."""
    project.settings("vllm", linger_seconds=0, **vlm)
    shutil.copy(project.documents / "fixture.pdf", project.corpus)
    good(project.run("--notemp", "plan", "environment"))
    (shard,) = [path.stem for path in (project.results / "plan/shards").glob("*.tsv")]
    weights = project.folder / "weights.pt"
    weights.touch()
    config = yaml.safe_load((project.folder / "config/config.yaml").read_text())
    changes = {"layout": "doclayout-yolo", "detector": {"weights": str(weights)}, "results": str(project.results)}
    settings = load(config | changes)
    results = Results(project.results)
    (digest,) = [planned.digest for planned in read_shard(results.shard(shard))]
    Regions(results.regions, settings).put(digest, regions)
    monkeypatch.chdir(project.folder)
    (document,) = extract(results, shard, settings, 2).documents
    folder = Store(results.store, settings.output_digest()).folder(digest)
    return document, json.loads((folder / "content_list.json").read_text())


def test_the_regions_of_a_detector_go_to_step_two(project: VlmProject, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        number: [{key: block[key] for key in ("type", "bbox", "angle")} for block in page["blocks"]]
        for number, page in enumerate(project.truth["fixture"])
    }
    document, items = read_with_regions(project, monkeypatch, found)
    assert document.state == "done" and all(page.layout == "doclayout-yolo" for page in document.pages)
    texts = [block["content"] for block in project.truth["fixture"][0]["blocks"]]
    assert [item["text"] for item in items if item["page_idx"] == 0] == texts
    assert document.pages[0].finish == {"stop": len(texts)}, "a request for each region, and none for the layout"


def test_a_poisoned_request_costs_its_block(project: VlmProject, monkeypatch: pytest.MonkeyPatch) -> None:
    number = project.truth["fixture"][0]["blocks"][-1]
    assert number["type"] == "page_number"
    small = {key: number[key] for key in ("type", "bbox", "angle")}
    regions = {page: [small] for page in range(5)}
    regions[0] = [{"type": "text", "bbox": [0.0, 0.0, 1.0, 1.0], "angle": 0}, small]
    # The picture of a whole page is more than vLLM is told to take, so it refuses the request; a number's is not.
    arguments = ARGUMENTS | {"max_model_len": 150, "max_num_batched_tokens": 2048}
    document, items = read_with_regions(project, monkeypatch, regions, arguments=arguments)
    first = document.pages[0]
    assert first.fallback == ["rejected"] and first.finish == {"stop": 1, "error": 1}
    texts = [item["text"] for item in items if item["page_idx"] == 0]
    assert "Water rose in the second spring." in texts[0], "the text layer stands in for it"
    assert texts[1] == number["content"]
