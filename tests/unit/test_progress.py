"""The display tells pages, rates and what is left, from files alone."""

from __future__ import annotations

import json
import time
from pathlib import Path

from pdfquarry import files
from pdfquarry.plan import INDEX_COLUMNS
from pdfquarry.progress import Display, Standing, standing
from pdfquarry.results import Results


def shard(results: Results, name: str, **state: float) -> None:
    files.write(results.work(name) / "progress.json", json.dumps(state))


def test_a_run_stands_where_its_shards_stand(tmp_path: Path) -> None:
    results = Results(tmp_path)
    assert standing(results) is None
    files.write(
        results.index, files.table(INDEX_COLUMNS, [("s00001-a", 10, 100), ("s00002-b", 5, 60), ("s00003-c", 1, 9)])
    )
    shard(results, "s00001-a", documents_done=10, pages_done=130, failed=2)
    shard(results, "s00002-b", documents_done=1, pages_done=20.5, failed=0)
    assert standing(results) == Standing((1, 3), (11, 16), (120, 169), 2)
    (results.work("s00002-b") / "progress.json").write_text("{torn")
    assert standing(results) == Standing((1, 3), (10, 16), (100, 169), 2)


def test_the_line_gives_the_rate_now_and_over_all_and_the_time_left(tmp_path: Path) -> None:
    display = Display(Results(tmp_path), 1)
    at = lambda pages: Standing((0, 2), (1, 9), (pages, 1000), 0)  # noqa: E731
    assert "unknown left" in display.line(at(0), 50.0)
    assert "unknown left" in display.line(at(0), 100.0)
    assert "100/1000 pages, 10.0 pages/s now, 10.0 over all, 1:30 left" in display.line(at(100), 110.0)
    assert "20.0 pages/s now, 15.0 over all, 0:47 left" in display.line(at(300), 120.0)


def test_the_display_writes_a_log_and_stops(tmp_path: Path) -> None:
    results = Results(tmp_path)
    files.write(results.index, files.table(INDEX_COLUMNS, [("s00001-a", 10, 100)]))
    shard(results, "s00001-a", documents_done=1, pages_done=10, failed=0)
    said: list[str] = []
    display = Display(results, 0.05, said.append)
    display.start()
    deadline = time.monotonic() + 10
    while not said and time.monotonic() < deadline:
        time.sleep(0.02)
    display.stop()
    assert said and "1/10 documents (0 failed), 10/100 pages" in said[0]
    assert said[0] in (tmp_path / "logs" / "progress.log").read_text()
    time.sleep(0.2)
    number = len(said)
    time.sleep(0.2)
    assert len(said) == number
