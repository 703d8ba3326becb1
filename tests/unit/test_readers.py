"""A document may do anything to its reader; the others don't notice."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import hostile
from pdfquarry.errors import EnvironmentFault
from pdfquarry.readers import Death, Readers
from pdfquarry.records import Reason


def run(tasks: list[str], deadline: float = 30, memory_mb: int = 512) -> dict[str, str | Death]:
    readers = Readers(hostile.act, 2, deadline, memory_mb, hostile.prepare)
    return dict(ended for ended in readers.run(tasks) if ended is not None)


def test_a_crash_costs_its_own_document_only() -> None:
    ended = run(["a", "crash", "b", "abort", "c", "exit", "d"])
    assert {task for task, outcome in ended.items() if outcome == f"{task} done"} == set("abcd")
    assert [ended[task].reason for task in ("crash", "abort", "exit")] == [Reason.CRASHED] * 3
    assert "SIGSEGV" in ended["crash"].detail and "SIGABRT" in ended["abort"].detail


def test_a_death_tells_what_was_being_done() -> None:
    death = run(["crash"])["crash"]
    assert (death.progress.stage, death.progress.first, death.progress.last, death.progress.done) == (2, 3, 5, 1)


def test_a_hang_is_stopped_at_the_deadline_and_slow_progress_is_not() -> None:
    started = time.monotonic()
    ended = run(["hang", "slow", "a"], deadline=1.5)
    assert ended["hang"].reason is Reason.TIMEOUT
    assert ended["slow"] == "slow done" and ended["a"] == "a done"
    assert time.monotonic() - started < 60


def test_a_document_that_wants_too_much_memory_is_refused_it() -> None:
    ended = run(["allocate", "a"], memory_mb=512)
    assert ended["allocate"].reason is Reason.OUT_OF_MEMORY
    assert ended["a"] == "a done"
    assert run(["allocate"], memory_mb=3000)["allocate"] == str(2 * 2**30)


def test_a_bug_of_ours_is_not_taken_for_a_bad_document() -> None:
    with pytest.raises(ValueError, match="a bug"):
        run(["raise"])


def test_tasks_may_be_added_while_running() -> None:
    tasks = ["a"]
    readers = Readers(hostile.act, 1, 30, 512, hostile.prepare)
    ended = []
    for outcome in readers.run(tasks):
        if outcome is not None:
            ended.append(outcome[0])
            if outcome[0] == "a":
                tasks += ["b", "c"]
    assert sorted(ended) == ["a", "b", "c"]


def test_no_reader_is_left_behind() -> None:
    before = _children()
    run(["a", "crash", "hang"], deadline=1)
    left = [Path(f"/proc/{pid}/cmdline").read_text() for pid in _children() - before]
    assert not [command for command in left if "spawn_main" in command]


def _children() -> set[str]:
    return {pid for pid in os.listdir("/proc") if pid.isdigit() and _parent(pid) == os.getpid()}


def _parent(pid: str) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return 0


@pytest.mark.parametrize("prepare", [hostile.fail_to_prepare, hostile.die_preparing])
def test_an_engine_that_does_not_load_ends_the_job_and_fails_no_document(prepare: Callable[[], None]) -> None:
    with pytest.raises(EnvironmentFault, match="reader processes do not start"):
        list(Readers(hostile.act, 2, 30, 512, prepare).run(["a", "b"]))
