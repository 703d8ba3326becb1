"""Measure what planning and Snakemake cost with many documents: 1,000, 10,000 and 100,000 by default.

    python scripts/bench_dag.py [--documents 1000 10000 100000] [--json docs/benchmarks/dag.json]

Extraction is left out on purpose: the documents are files of some bytes that are no PDFs, and the receipts are written
by this script as `extract` would write them. Everything else is the workflow itself. For each number of documents, in
a temporary folder: the first planning, a run that has nothing to do, and an increment of one hundred documents up to
the point where its extraction would begin. CPU seconds and the highest resident memory of the process are printed.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "workflow"))

from pdfquarry import files, plan  # noqa: E402
from pdfquarry.records import DocumentRecord, PageRecord, Receipt, State  # noqa: E402
from pdfquarry.results import Results  # noqa: E402
from pdfquarry.settings import Settings, load  # noqa: E402

INCREMENT = 100
# Above this, one job a document takes minutes.
MOST_JOBS = 10_000
JOB_PER_DOCUMENT = """
DOCUMENTS = range({number})
rule all:
    input: expand("markdown/{{document}}.md", document=DOCUMENTS)
rule extract:
    output: "markdown/{{document}}.md"
    shell: "touch {{output}}"
"""
STEPS = {"plan": "first plan", "publish": "publish, summarize", "no_op": "nothing to do", "increment": "plan 100 more"}
STEPS |= {"per_document": "dry run of one job a document"}
BEGIN, END = "<!-- dag: begin -->", "<!-- dag: end -->"


def measure(command: list[str]) -> dict[str, Any]:
    """Run a command; return its wall and CPU seconds, its peak memory in MiB, and its last lines."""
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout
    text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)}\n{text}")
    return {
        "wall_s": round(time.monotonic() - started, 2),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 2),
        "peak_mib": round(usage.ru_maxrss / 1024),
        "nothing": "Nothing to be done" in text,
    }


def make_documents(folder: Path, first: int, number: int) -> None:
    """Make documents of some bytes, 1,000 in a folder."""
    for index in range(first, first + number):
        path = folder / f"{index // 1000:04}" / f"{index:07}.pdf"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"document %d" % index)


def make_receipts(results: Results, settings: Settings) -> int:
    """Write the receipts of all shards, with one page a document; return the number of shards."""
    shards = sorted(path.stem for path in results.shards.glob("*.tsv"))
    for shard in shards:
        if results.receipt(shard).exists():
            continue
        records = [
            DocumentRecord(digest=d.digest, state=State.FAILED, pages=[PageRecord(page=1, engine="none")])
            for d in plan.read_shard(results.shard(shard))
        ]
        receipt = Receipt(
            shard=shard,
            output=settings.output_digest(),
            limits=settings.limits_digest(),
            engine="embedded",
            versions={},
            host="",
            workers=1,
            started="2026-01-01T00:00:00+00:00",
            seconds=1,
            extracted=len(records),
            extracted_pages=len(records),
            documents=records,
        )
        files.write(results.receipt(shard), receipt.model_dump_json(exclude_defaults=True))
    return len(shards)


def measure_one(number: int) -> dict[str, Any]:
    """Return the figures for a corpus of ``number`` documents."""
    folder = Path(tempfile.mkdtemp(prefix="bench_dag"))
    try:
        corpus, results = folder / "corpus", Results(folder / "results")
        make_documents(corpus, 0, number)
        config = {"corpus": str(corpus), "results": str(results.root), "pages_per_shard": "200"}
        snakemake = [sys.executable, "-m", "snakemake", "-s", str(ROOT / "Snakefile"), "--directory", str(folder)]
        snakemake += ["--cores", "2", "--config", *(f"{key}={value}" for key, value in config.items())]
        figures = {"documents": number, "plan": measure([*snakemake, "--until", "plan"])}
        shards = make_receipts(results, load(config))
        # The receipts are new to Snakemake: this run publishes and summarizes.
        measure([*snakemake, "--touch"])
        figures |= {"shards": shards, "publish": measure(snakemake), "no_op": measure(snakemake)}
        make_documents(corpus, number, INCREMENT)
        figures["increment"] = measure([*snakemake, "--until", "plan"])
        if number <= MOST_JOBS:
            figures["per_document"] = measure_job_per_document(number)
        return figures
    finally:
        shutil.rmtree(folder)


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return the table of docs/architecture.md between its marks."""
    lines = [
        BEGIN,
        "| documents | shards | step | wall s | CPU s | peak MiB |",
        "| ---: | ---: | --- | ---: | ---: | ---: |",
    ]
    for figures in rows:
        for step, name in STEPS.items():
            if step not in figures:
                continue
            one = figures[step]
            start = f"| {figures['documents']:,} | {figures['shards']} | {name} |"
            lines.append(f"{start} {one['wall_s']:.1f} | {one['cpu_s']:.1f} | {one['peak_mib']} |")
    return "\n".join([*lines, END])


def measure_job_per_document(number: int) -> dict[str, Any]:
    """Return the figures of a dry run of a workflow with one job for each document, for comparison."""
    folder = Path(tempfile.mkdtemp(prefix="bench_dag"))
    try:
        (folder / "Snakefile").write_text(JOB_PER_DOCUMENT.format(number=number))
        return measure(
            [sys.executable, "-m", "snakemake", "--directory", str(folder), "-s", f"{folder}/Snakefile", "-nq"]
        )
    finally:
        shutil.rmtree(folder)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--json", type=Path, help="write the figures here and into docs/architecture.md")
    options = parser.parse_args()
    rows = []
    print(f"{'documents':>10} {'shards':>7}  {'step':<12} {'wall s':>7} {'CPU s':>7} {'MiB':>6}")
    for number in options.documents:
        figures = measure_one(number)
        rows.append(figures)
        for step in (step for step in STEPS if step in figures):
            one = figures[step]
            print(
                f"{number:>10} {figures['shards']:>7}  {step:<12} "
                f"{one['wall_s']:>7} {one['cpu_s']:>7} {one['peak_mib']:>6}",
                flush=True,
            )
    if options.json:
        machine = {"cores": os.cpu_count(), "python": platform.python_version(), "snakemake": version("snakemake")}
        files.write_json(options.json, {"machine": machine, "rows": rows})
        page = ROOT / "docs" / "architecture.md"
        before, rest = page.read_text(encoding="utf-8").split(BEGIN)
        page.write_text(before + markdown(rows) + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
