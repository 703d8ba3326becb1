"""The summary: what became of every document, and how fast each stage, shard and engine was."""

from __future__ import annotations

import pandas

from pdfquarry import files
from pdfquarry.errors import FailedDocuments, ResultsError
from pdfquarry.plan import CORPUS_COLUMNS, INDEX_COLUMNS
from pdfquarry.publish import read_receipt
from pdfquarry.records import Receipt, State
from pdfquarry.results import Results

# Rows of a table in summary.md; the .tsv files have them all.
_MOST_NAMED = 50


def summarize(results: Results) -> str:
    """Write summary.md, documents.tsv and throughput.tsv; return the summary's text.

    Raises ResultsError when the documents don't add up: found = done + partial + failed + duplicate.
    """
    try:
        documents = pandas.read_parquet(results.root / "documents.parquet")
    except (OSError, ValueError) as error:
        raise ResultsError(f"{results.root}/documents.parquet: can't be read; delete it to publish again") from error
    receipts = [read_receipt(results.receipt(row[0])) for row in files.read_table(results.index, INDEX_COLUMNS)]
    states = documents["state"].value_counts()
    counts = {state.value: int(states.get(state.value, 0)) for state in State}
    found = sum(1 for _ in files.read_table(results.corpus, CORPUS_COLUMNS))
    if sum(counts.values()) != found:
        raise ResultsError(f"{found} files were found and {sum(counts.values())} are accounted for: {counts}")
    throughput = _throughput(receipts)
    text = _text(documents, counts, found, throughput)
    files.write(results.summary / "documents.tsv", documents.to_csv(sep="\t", index=False))
    files.write(results.summary / "throughput.tsv", throughput.to_csv(sep="\t", index=False, float_format="%.3f"))
    files.write(results.summary / "summary.md", text)
    return text


def check(results: Results) -> None:
    """Raise FailedDocuments when the summary has a failed document (for ``strict: true``)."""
    documents = pandas.read_csv(results.summary / "documents.tsv", sep="\t", dtype=str, keep_default_na=False)
    failed = documents[documents["state"] == State.FAILED]
    if len(failed):
        raise FailedDocuments(f"strict: {len(failed)} documents failed; they are in {results.summary}/summary.md")


def _throughput(receipts: list[Receipt]) -> pandas.DataFrame:
    """Return pages, seconds and pages/s, by the jobs' clocks (shards) and by the readers' clocks (documents, stages).

    A shard's row covers what its last job read; the others cover every document once, whenever it was read.
    """
    pages = sum(receipt.extracted_pages for receipt in receipts)
    documents = [document for receipt in receipts for document in receipt.documents]
    rows = [
        _row("all shards", "", pages, sum(receipt.seconds for receipt in receipts)),
        _row("all documents", "", sum(len(d.pages) for d in documents), sum(d.seconds for d in documents)),
    ]
    stages: dict[str, list[float]] = {}
    for document in documents:
        ocr_pages = sum(page.engine == "ppocr" for page in document.pages)
        for stage, seconds in document.stages.items():
            total = stages.setdefault(stage, [0, 0.0])
            total[0] += ocr_pages if stage == "ocr" else len(document.pages)
            total[1] += seconds
    rows.extend(_row("stage", stage, int(total), seconds) for stage, (total, seconds) in stages.items())
    slowest = sorted(receipts, key=lambda receipt: -receipt.seconds)
    rows.extend(_row("shard", receipt.shard, receipt.extracted_pages, receipt.seconds) for receipt in slowest)
    return pandas.DataFrame(rows)


def _row(what: str, name: str, pages: int, seconds: float) -> dict[str, object]:
    rate = pages / seconds if seconds else 0.0
    return {"what": what, "name": name, "pages": pages, "seconds": seconds, "pages_per_second": rate}


def _text(documents: pandas.DataFrame, counts: dict[str, int], found: int, throughput: pandas.DataFrame) -> str:
    unique = documents[documents["state"] != State.DUPLICATE]
    lines = ["# Summary", "", "| | |", "| --- | --- |"]
    lines.append(f"| documents found | {found} |")
    lines += [f"| {name} | {number} |" for name, number in counts.items()]
    lines.append(f"| pages read | {int(unique['pages'].sum() - unique['failed_pages'].sum())} |")
    lines.append(f"| pages failed | {int(unique['failed_pages'].sum())} |")
    lines.append(f"| characters | {int(unique['characters'].sum())} |")
    empty = unique[(unique["characters"] == 0) & unique["state"].isin([State.DONE, State.PARTIAL])]
    lines.append(f"| documents without text | {len(empty)} |")
    lines += ["", "## Throughput", "", "| what | name | pages | seconds | pages/s |"]
    lines.append("| --- | --- | ---: | ---: | ---: |")
    for row in throughput.head(_MOST_NAMED).itertuples():
        lines.append(f"| {row.what} | {row.name} | {row.pages} | {row.seconds:.1f} | {row.pages_per_second:.2f} |")
    lines += [
        "",
        "Documents and stages count every document once, in seconds of one reader. Shards count what the last",
    ]
    lines.append("job of each read, in seconds of that job with all its readers.")
    troubled = documents[documents["state"].isin([State.FAILED, State.PARTIAL])]
    if len(troubled):
        lines += ["", "## Failures", "", "| reason | documents |", "| --- | ---: |"]
        lines += [f"| {reason} | {number} |" for reason, number in troubled["reason"].value_counts().items()]
        lines += ["", "| document | state | reason | |", "| --- | --- | --- | --- |"]
        for row in troubled.head(_MOST_NAMED).itertuples():
            lines.append(f"| {_cell(row.path)} | {row.state} | {row.reason} | {_cell(row.detail)} |")
        if len(troubled) > _MOST_NAMED:
            lines.append(f"\n{len(troubled) - _MOST_NAMED} more are in documents.tsv.")
    return "\n".join(lines) + "\n"


def _cell(text: object) -> str:
    """Return a text as a cell: a path is data, and neither a table's border nor HTML."""
    return str(text).replace("|", "\\|").replace("<", "&lt;")


def closing_words(results: Results) -> str:
    """Return the last words of a run: where the Markdown and the summary are, and what failed."""
    documents = pandas.read_csv(results.summary / "documents.tsv", sep="\t", dtype=str, keep_default_na=False)
    counts = documents["state"].value_counts()
    said = ", ".join(f"{counts[state]} {state}" for state in State if state in counts)
    lines = [f"PDF Quarry: {len(documents)} documents: {said}"]
    failed = documents[documents["state"].isin([State.FAILED, State.PARTIAL])]
    lines += [f"  {row.state}: {row.path} ({row.reason})" for row in failed.head(10).itertuples()]
    if len(failed) > 10:
        lines.append(f"  and {len(failed) - 10} more")
    lines.append(f"  Markdown:  {results.markdown}")
    lines.append(f"  Table:     {results.root / 'documents.parquet'}")
    lines.append(f"  Summary:   {results.summary / 'summary.md'}")
    return "\n".join(lines)
