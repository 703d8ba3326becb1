"""Child processes that open PDFs: each has a memory limit, a deadline by progress, and dies alone.

PDFs are hostile input: native code that reads one may crash, hang, or take all memory. A pool of readers (pebble) runs
a function on one document a task; the function reports progress through a ``Beat``, and a reader whose beat stands
still for too long is stopped. What was being done at that moment is known, so the caller can leave just that out.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import pebble

from pdfquarry.errors import EnvironmentFault
from pdfquarry.records import Reason

T = TypeVar("T")

# A reader is replaced after so many documents, against what native libraries leak; starting one costs about a second.
DOCUMENTS_PER_READER = 500
# What a reader exits with when Python could not get memory; 128 + SIGKILL, as the kernel's own killer gives.
OUT_OF_MEMORY = 137
# Doubles in a slot of the shared array: time of the beat, stage, first page, last page, pages done.
_FIELDS = 5

_beats: Any = None


@dataclass(frozen=True, slots=True)
class Progress:
    """What a reader last said: ``stage`` is an index of the caller's, pages count from 0, ``last`` is included."""

    at: float
    stage: int
    first: int
    last: int
    done: int


class Beat:
    """Says, from inside a reader, what it begins now."""

    def __init__(self, slot: int) -> None:
        self._base = slot * _FIELDS

    def __call__(self, stage: int, first: int = -1, last: int = -1, done: int = 0) -> None:
        """Begin ``stage`` on the pages ``first`` to ``last``, with ``done`` pages finished."""
        _beats[self._base : self._base + _FIELDS] = [time.monotonic(), stage, first, last, done]


@dataclass(frozen=True, slots=True)
class Death:
    """A reader that ended without a result, and what it was doing."""

    reason: Reason
    detail: str
    progress: Progress


@dataclass(slots=True)
class _Running(Generic[T]):
    task: T
    slot: int
    late: bool = False


def _start(beats: Any, memory_mb: int, prepare: Callable[[], None]) -> None:
    """Initialise a reader: die with the parent, load the engine, then limit what a document may add."""
    global _beats
    _beats = beats
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no reader outlives a killed job
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent decides
    prepare()
    if sys.platform == "linux":
        loaded = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        limit = loaded + memory_mb * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _guard(function: Callable[[T, Beat], Any], task: T, slot: int) -> Any:
    """Run in the reader. A process that once ran out of memory is not trusted with another document."""
    beat = Beat(slot)
    beat(0)
    try:
        return function(task, beat)
    except MemoryError:
        os._exit(OUT_OF_MEMORY)


class Readers(Generic[T]):
    """A pool of readers.

    Args:
        function: called in a reader with a task and a Beat; module level, so that it can be pickled.
        workers: number of processes.
        deadline: seconds that a beat may stand still.
        memory_mb: MiB that a task may take on top of what ``prepare`` loaded.
        prepare: called once in each new reader, before the memory limit is set.
    """

    def __init__(
        self,
        function: Callable[[T, Beat], Any],
        workers: int,
        deadline: float,
        memory_mb: int,
        prepare: Callable[[], None],
    ) -> None:
        self._function = function
        self._workers = workers
        self._deadline = deadline
        self._initargs = (memory_mb, prepare)
        self._context = multiprocessing.get_context("spawn")
        # One task more than readers, so that none waits for the parent.
        self._slots = list(range(workers + 1))
        self._beats = self._context.RawArray("d", (workers + 1) * _FIELDS)
        self._running: dict[Any, _Running[T]] = {}

    def run(
        self, tasks: list[T], more: Callable[[], bool] = lambda: False, pause: float = 0.5
    ) -> Iterator[tuple[T, Any | Death] | None]:
        """Yield (task, result or Death) as they end, and None every ``pause`` seconds in between.

        It goes on while there are tasks, or the caller says that there will be ``more``. The caller may append to
        ``tasks`` while iterating. An exception that ``function`` raises is raised here.
        """
        pool = self._pool()
        broken = 0
        try:
            while tasks or self._running or more():
                while tasks and self._slots:
                    self._schedule(pool, tasks.pop(0))
                if not self._running:
                    time.sleep(pause)
                done, _ = wait(self._running, timeout=pause, return_when=FIRST_COMPLETED)
                for future in done:
                    running = self._running.pop(future)
                    self._slots.append(running.slot)
                    outcome = self._outcome(future, running)
                    if outcome is None:  # the pool broke before a reader took the task
                        tasks.insert(0, running.task)
                        continue
                    broken = 0
                    yield running.task, outcome
                if not pool.active:
                    broken += 1
                    if broken > 3:
                        raise EnvironmentFault("the reader processes do not start; see the lines above for the cause")
                    pool.stop()
                    pool = self._pool()
                self._stop_late()
                yield None
        finally:
            pool.stop()
            pool.join()

    def progress(self) -> list[tuple[T, Progress]]:
        """Return what each running task last said."""
        return [(running.task, self._progress(running.slot)) for running in list(self._running.values())]

    def _pool(self) -> pebble.ProcessPool:
        return pebble.ProcessPool(
            max_workers=self._workers,
            max_tasks=DOCUMENTS_PER_READER,
            initializer=_start,
            initargs=(self._beats, *self._initargs),
            context=self._context,
        )

    def _schedule(self, pool: pebble.ProcessPool, task: T) -> None:
        slot = self._slots.pop()
        self._beats[slot * _FIELDS : (slot + 1) * _FIELDS] = [0.0] * _FIELDS
        future = pool.schedule(_guard, args=(self._function, task, slot))
        self._running[future] = _Running(task, slot)

    def _progress(self, slot: int) -> Progress:
        at, *rest = self._beats[slot * _FIELDS : (slot + 1) * _FIELDS]
        return Progress(at, *map(int, rest))

    def _stop_late(self) -> None:
        now = time.monotonic()
        for future, running in self._running.items():
            at = self._progress(running.slot).at
            if at and now - at > self._deadline and not running.late:
                running.late = True
                future.cancel()

    def _outcome(self, future: Any, running: _Running[T]) -> Any | Death | None:
        progress = self._progress(running.slot)
        try:
            return future.result()
        except CancelledError:
            return Death(Reason.TIMEOUT, f"no progress for {self._deadline:g} s", progress)
        except pebble.ProcessExpired as expired:
            code = expired.exitcode or 0
            if code == OUT_OF_MEMORY:
                return Death(Reason.OUT_OF_MEMORY, f"more than {self._initargs[0]} MiB wanted", progress)
            name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            return Death(Reason.CRASHED, f"its reader died ({name})", progress)
        except (RuntimeError, OSError) as error:
            if "BrokenProcessPool" in type(error).__name__ or not progress.at:
                return None
            raise
