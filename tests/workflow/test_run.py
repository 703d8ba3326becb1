"""What a person meets: the sample corpus, mistakes, odd files, a run that is killed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from pathlib import Path
from urllib.parse import unquote

import pandas
import pytest

from pdfs import form_bomb, text_pdf
from project import Project
from samples import CORPUS, TRUTH, likeness


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = Project(tmp_path_factory.mktemp("sample"))
    project.ended = project.run(corpus=CORPUS)  # type: ignore[attr-defined]
    return project


def test_the_sample_corpus_is_extracted_and_failures_do_not_end_the_run(sample: Project) -> None:
    ended = sample.ended  # type: ignore[attr-defined]
    assert ended.code == 0, ended.text
    failed = {
        "corrupt.pdf": "corrupt",
        "empty.pdf": "empty",
        "encrypted.pdf": "encrypted",
        "not-a-pdf.pdf": "not_a_pdf",
    }
    states = sample.states()
    assert {name: state for name, state in states.items() if name in failed} == failed
    assert sorted(states[name] for name in states if name not in failed) == ["done"] * 13 + ["duplicate"]


def test_every_link_to_a_picture_leads_to_one(sample: Project) -> None:
    links = 0
    for path in (sample.results / "markdown").rglob("*.md"):
        for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", path.read_text(encoding="utf-8")):
            assert (path.parent / unquote(target)).is_file()
            links += 1
    assert links >= 3


def test_the_markdown_of_every_sample_has_its_text(sample: Project) -> None:
    table = sample.table().set_index("path")
    for name, truth in TRUTH.items():
        text = (sample.results / table.loc[str(CORPUS / name), "markdown"]).read_text(encoding="utf-8")
        for page, words in truth.items():
            if page.isdigit():
                assert likeness(words, text) > 0.97, name
        assert int(table.loc[str(CORPUS / name), "pages"]) == truth["pages"]


def test_every_page_says_which_engine_read_it(sample: Project) -> None:
    table = sample.table().set_index("path")
    assert table.loc[str(CORPUS / "scans/mixed.pdf"), "engine"] == "docvortex+ppocr"
    assert table.loc[str(CORPUS / "scans/letter.pdf"), "engine"] == "ppocr"
    (record,) = (sample.results / "markdown/corpus/scans/mixed.pdf").glob("document.json")
    engines = [page["engine"] for page in pandas.read_json(record, typ="series")["pages"]]
    assert engines == ["docvortex", "ppocr", "docvortex"]


def test_the_summary_adds_up_and_tells_speeds(sample: Project) -> None:
    summary = (sample.results / "summary/summary.md").read_text(encoding="utf-8")
    numbers = {name: int(number) for name, number in re.findall(r"^\| ([a-z ]+) \| (\d+) \|$", summary, flags=re.M)}
    assert numbers["documents found"] == 18
    assert numbers["documents found"] == sum(numbers[state] for state in ("done", "partial", "failed", "duplicate"))
    throughput = pandas.read_csv(sample.results / "summary/throughput.tsv", sep="\t")
    assert {"shard", "stage", "all shards", "all documents"} == set(throughput["what"])
    assert (throughput.loc[throughput["seconds"] > 0, "pages_per_second"] >= 0).all()
    documents = pandas.read_csv(sample.results / "summary/documents.tsv", sep="\t")
    assert len(documents) == 18


def test_a_wrong_setting_is_told_in_a_line_and_nothing_is_written(project: Project) -> None:
    ended = project.run(enigne="vllm", pages_per_shard=0)
    assert ended.code == 1 and "Traceback" not in ended.text
    assert "exit code 2" in ended.text and "enigne: unknown setting, did you mean engine?" in ended.text
    assert "pages_per_shard: input should be greater than or equal to 1" in ended.text
    assert not project.results.exists()


def test_a_corpus_that_is_not_there_is_told_in_a_line(project: Project) -> None:
    ended = project.run(corpus="/no/such/folder")
    assert ended.code == 1 and "Traceback" not in ended.text
    assert "corpus: /no/such/folder: no such file or folder" in ended.text and "exit code 3" in ended.text


def test_a_gpu_that_is_not_there_is_refused_by_name(project: Project) -> None:
    text_pdf(project.corpus / "a.pdf", "A")
    ended = project.run(arch="gfx1100")
    assert ended.code == 1 and "arch: gfx1100 was asked for, and this machine has" in ended.text
    assert "Traceback" not in ended.text and not (project.results / "environment.json").exists()


def test_strict_ends_with_an_error_after_all_is_written(project: Project) -> None:
    text_pdf(project.corpus / "a.pdf", "A")
    (project.corpus / "bad.pdf").write_bytes(b"nothing")
    ended = project.run(strict="true")
    assert ended.code == 1 and "strict: 1 documents failed" in ended.text
    assert "c/a.pdf/a.md" in project.tree() and (project.results / "summary/summary.md").exists()
    assert project.run().code == 0
    (project.corpus / "bad.pdf").unlink()
    assert project.run(strict="true").code == 0


def test_a_page_that_hangs_makes_a_partial_document_and_the_rest_is_there(project: Project) -> None:
    form_bomb(project.corpus / "bomb.pdf", "Bomb")
    text_pdf(project.corpus / "good.pdf", "Good")
    ended = project.run(limits="{page_seconds: 6}")
    assert ended.code == 0, ended.text
    table = project.table().set_index("markdown")
    bomb = table.loc["markdown/c/bomb.pdf/bomb.md"]
    assert (bomb["state"], bomb["pages"], bomb["failed_pages"]) == ("partial", 3, 1)
    text = project.tree()["c/bomb.pdf/bomb.md"].decode()
    assert text.index("[1.10]") < text.index("[Page 2 could not be read:") < text.index("[3.10]")
    assert project.states()["good.pdf"] == "done" and "partial: c/bomb.pdf" in ended.text


def test_names_of_any_kind_are_published_inside_the_results(project: Project) -> None:
    source = text_pdf(project.folder / "source.pdf", "Any name").read_bytes()
    folder = os.fsencode(project.corpus)
    names = [b"\xff\xfe.pdf", b"new\nline.pdf", b"tab\t.pdf", b"'quotes\".pdf", b"-rf.pdf", b"{curly}.pdf", b"a.pdf"]
    names += [b"A.PDF", b"images/b.pdf", b"n" * 251 + b".pdf", "中文 名.pdf".encode(), b"back\\slash.pdf", b"*.pdf"]
    for index, name in enumerate(names):
        path = os.fsdecode(folder + b"/" + name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(path).write_bytes(source + b"%" + str(index).encode())
    outside = set(project.folder.iterdir())
    ended = project.run()
    assert ended.code == 0, ended.text
    assert list(project.table()["state"]) == ["done"] * len(names)
    assert len([name for name in project.tree() if name.endswith(".md")]) == len(names)
    assert set(project.folder.iterdir()) - outside == {project.results, project.folder / ".snakemake"}
    assert "Nothing to be done" in project.run().text


def test_a_killed_run_goes_on_where_it_was(project: Project) -> None:
    for number in range(24):
        text_pdf(project.corpus / f"{number:02}.pdf", f"Document {number}", 6)
    run = project.start(pages_per_shard=50)
    deadline = time.monotonic() + 120
    while project.journal() < 5 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    time.sleep(1)
    read = project.journal()
    assert 5 <= read < 24, (project.folder / "out").read_text()
    ended = project.run(pages_per_shard=50)
    assert ended.code == 0, ended.text
    assert ended.extracted == 24 - read
    undisturbed = Project(project.folder / "again")
    shutil.copytree(project.corpus, undisturbed.corpus, dirs_exist_ok=True)
    assert undisturbed.run(pages_per_shard=50).code == 0
    assert undisturbed.tree() == project.tree()


def test_ctrl_c_ends_within_seconds_and_loses_no_finished_document(project: Project) -> None:
    for number in range(4):
        text_pdf(project.corpus / f"{number}.pdf", f"Document {number}")
    form_bomb(project.corpus / "bomb.pdf", "Bomb")
    run = project.start()
    deadline = time.monotonic() + 120
    while project.journal() < 4 and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(run.pid, signal.SIGINT)
    assert run.wait(timeout=30) != 0
    while _workers(project.folder) and time.monotonic() < deadline:
        time.sleep(0.2)
    said = (project.folder / "out").read_text()
    assert not _workers(project.folder) and "Traceback" not in said, said
    ended = project.run(limits="{page_seconds: 6}")
    assert ended.code == 0 and project.states()["0.pdf"] == "done"
    assert ended.extracted == 1, "a finished document was read again"


def test_killing_snakemake_alone_leaves_no_job_at_work(project: Project) -> None:
    form_bomb(project.corpus / "bomb.pdf", "Bomb")
    run = project.start()
    deadline = time.monotonic() + 120
    while not _workers(project.folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    run.kill()
    run.wait()
    while _workers(project.folder) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not _workers(project.folder)


def _workers(folder: Path) -> list[str]:
    """Return the extract jobs and readers at work in a folder."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and os.readlink(process / "cwd") == str(folder):
                command = (process / "cmdline").read_bytes()
                if b"pdfquarry\0extract" in command or b"multiprocessing" in command:
                    found.append(process.name)
        except OSError:
            continue
    return found


def test_a_second_run_on_the_same_results_leaves(project: Project) -> None:
    form_bomb(project.corpus / "bomb.pdf", "Bomb")
    first = project.start()
    try:
        deadline = time.monotonic() + 120
        while not (project.results / "shards").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        second = project.run()
        assert second.code == 1 and "another run is at work in this folder" in second.text
        assert "Traceback" not in second.text
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()


def test_a_higher_output_version_reads_everything_again(tmp_path: Path, repository: Path) -> None:
    project = Project(tmp_path / "work", repository)
    text_pdf(project.corpus / "a.pdf", "A")
    assert project.run().extracted == 1
    package = repository / "workflow/pdfquarry/__init__.py"
    package.write_text(package.read_text().replace("OUTPUT_VERSION = ", "OUTPUT_VERSION = 1"))
    ended = project.run()
    assert ended.extracted == 1 and "the output version changed" in ended.text


def test_the_workflow_runs_from_its_standard_place(tmp_path: Path, repository: Path) -> None:
    (repository / "Snakefile").unlink()
    project = Project(tmp_path / "work", repository / "workflow")
    text_pdf(project.corpus / "a.pdf", "A")
    profile = str(repository / "profiles/default")
    ended = project.run("--workflow-profile", profile)
    assert ended.code == 0 and "c/a.pdf/a.md" in project.tree(), ended.text


def test_a_changed_environment_is_proven_again_and_redoes_nothing_else(tmp_path: Path, repository: Path) -> None:
    project = Project(tmp_path / "work", repository)
    text_pdf(project.corpus / "a.pdf", "A")
    assert project.run().code == 0
    module = repository / "workflow/pdfquarry/environment.py"
    module.write_text(module.read_text().replace('"pebble",', '"pebble", "filelock",'))
    ended = project.run()
    assert (ended.code, ended.rules, ended.extracted) == (0, ["environment"], 0), ended.text
    assert "Nothing to be done" in project.run().text


def test_what_a_job_lacks_is_told_on_the_terminal_and_not_in_a_log_alone(project: Project) -> None:
    text_pdf(project.corpus / "a.pdf", "A")
    # As quiet as the profile has it.
    ended = project.run("rules", "progress", engine="vllm", arch="cpu", vlm="{model: absent/model}")
    assert ended.code != 0 and "pdfquarry environment: vlm.model: absent/model is not on this machine" in ended.text
