"""An engine is found by the next job, or is gone: whatever hangs, dies or is killed in between."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pdfquarry import engine_process, holders, leases
from pdfquarry.engine_process import EngineDown, EngineProcess, last_words, lingers, open_engine, stop_all
from pdfquarry.errors import EnvironmentFault
from pdfquarry.leases import Device, Lease
from project import ROOT

GPU = Device("0", 0)
FAKE = [sys.executable, "-S", str(ROOT / "tests" / "helpers" / "fake_engine.py")]
Open = Callable[..., EngineProcess]


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder for locks, with a path that is short enough for sockets; end all that is left in there."""
    with tempfile.TemporaryDirectory(prefix="pq") as name:
        monkeypatch.setattr(holders, "GRACE_S", 0.5)
        monkeypatch.setenv("PDFQUARRY_LOCKS", name)
        yield Path(name)
        stop_all(Path(name))


@pytest.fixture
def log(place: Path) -> Path:
    return place / "logs" / "engine.log"


@pytest.fixture
def lease(place: Path) -> Iterator[Lease]:
    with leases.lease([GPU], place=place) as held:
        yield held


@pytest.fixture
def start(lease: Lease, log: Path) -> Open:
    def start(*options: str, digest: str = "d", linger_s: float = 60, start_s: float = 30, **environ: str | None):
        return open_engine(lease, [*FAKE, *options], digest, environ, linger_s, log, start_s)

    return start


def child_of(log: Path) -> int:
    return int(re.findall(r"child (\d+)", log.read_text())[-1])


def gone(pid: int) -> bool:
    """Return whether a process ends; the kernel takes a moment over it."""
    until = time.monotonic() + 30
    while holders.state(pid) and time.monotonic() < until:
        time.sleep(0.01)
    return holders.state(pid) is None


# A job as a process of its own: it leases the GPU, opens an engine, says its pid, and then lives until it is told.
JOB = """
import sys
from pathlib import Path
from pdfquarry import leases
from pdfquarry.engine_process import open_engine
held = leases.lease([leases.Device("0", 0)])
engine = open_engine(held, sys.argv[3:], "d", {}, float(sys.argv[1]), Path(sys.argv[2]), 30)
print(engine.pid, engine.started, flush=True)
if sys.stdin.readline():
    engine.close()
"""


def job(log: Path, linger_s: float, *options: str) -> tuple[subprocess.Popen[str], int, bool]:
    command = [sys.executable, "-c", JOB, str(linger_s), str(log), *FAKE, *options]
    environ = os.environ | {"PYTHONPATH": str(ROOT / "workflow")}
    process = subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    pid, started = process.stdout.readline().split()
    return process, int(pid), started == "True"


def test_a_lingering_engine_serves_the_next_job(start: Open, place: Path) -> None:
    with start() as first:
        assert first.started and first.alive() and first.start_seconds > 0
    assert lingers(GPU, "d", place) and not lingers(GPU, "other", place)
    with start() as second:
        assert not second.started and second.pid == first.pid and second.socket == first.socket and second.alive()


def test_a_lingering_engine_serves_a_job_of_another_process_even_after_the_first_was_killed(log: Path) -> None:
    first, pid, started = job(log, 60)
    assert started
    first.kill()
    first.wait()
    second, again, started = job(log, 60)
    assert (again, started) == (pid, False)
    second.communicate("end\n")
    assert second.returncode == 0 and holders.state(pid)


def test_an_engine_that_nobody_wants_ends_by_itself_and_frees_its_lock(start: Open, place: Path) -> None:
    engine = start(linger_s=1.5)
    engine.close()
    assert gone(engine.pid) and not engine.alive() and not lingers(GPU, "d", place)
    assert start().started


def test_an_engine_with_other_settings_is_replaced(start: Open) -> None:
    first = start()
    second = start(digest="other")
    assert second.started and gone(first.pid) and second.alive()


def test_a_job_that_wants_no_lingering_reuses_none_and_leaves_none(start: Open) -> None:
    first = start()
    with start(linger_s=0) as second:
        assert second.started and gone(first.pid)
    assert gone(second.pid)


def test_an_engine_that_was_not_to_linger_is_never_reused(start: Open) -> None:
    first = start(linger_s=0)
    assert start().started and gone(first.pid)


@pytest.mark.parametrize("options", [(), ("--stubborn",)])
def test_a_hung_engine_is_replaced(start: Open, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    first = start(*options)
    monkeypatch.setattr(engine_process, "GREET_S", 0.5)
    os.kill(first.pid, signal.SIGSTOP)
    second = start()
    assert second.started and gone(first.pid)


@pytest.mark.parametrize("child", ["keeps", "apart"])
def test_a_child_that_outlives_its_engine_is_cleared_by_the_next_job(log: Path, child: str, start: Open) -> None:
    first = start("--child", child)
    orphan = child_of(log)
    os.kill(first.pid, signal.SIGKILL)
    assert gone(first.pid) and holders.state(orphan) and not first.alive()
    second = start()
    assert second.started and gone(orphan)


@pytest.mark.parametrize("child", ["keeps", "drops", "apart"])
def test_an_engine_is_killed_with_its_children(log: Path, child: str, start: Open) -> None:
    engine = start("--child", child)
    if child == "apart":  # which holds the lock file, and leads another session
        assert os.getsid(child_of(log)) != engine.pid
    engine.kill()
    assert gone(child_of(log)) and not engine.alive()
    engine.kill()


def test_the_job_that_started_an_engine_clears_even_children_without_the_lock(log: Path, start: Open) -> None:
    engine = start("--child", "drops")
    os.kill(engine.pid, signal.SIGKILL)
    assert gone(engine.pid) and not engine.alive() and holders.state(child_of(log))
    engine.kill()
    assert gone(child_of(log))


def test_a_killed_job_whose_engine_was_not_to_linger_leaves_no_engine_and_the_next_clears_its_child(
    log: Path, place: Path
) -> None:
    killed, pid, _ = job(log, 0, "--child", "keeps")
    orphan = child_of(log)
    killed.kill()
    killed.wait()
    assert gone(pid) and holders.state(orphan)
    with leases.lease([GPU], place=place) as lease, open_engine(lease, FAKE, "d", {}, 0, log, 30) as engine:
        assert engine.started and gone(orphan)


def test_a_job_that_just_ends_takes_its_engine_along(log: Path) -> None:
    ended, pid, _ = job(log, 0)
    ended.communicate("")
    assert ended.returncode == 0 and gone(pid)


def test_an_engine_whose_job_died_before_it_was_started_does_not_start(tmp_path: Path) -> None:
    other = subprocess.Popen(["true"])
    other.wait()
    mark = tmp_path / "mark"
    command = [sys.executable, "-I", "-S", "-c", engine_process._DIE_WITH_JOB, str(other.pid), "touch", str(mark)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 1 and "has ended" in ended.stderr and not mark.exists()


@pytest.mark.parametrize("linger_s", [0, 60])
def test_an_engine_that_dies_while_it_starts_is_told_with_its_last_words(
    start: Open, log: Path, linger_s: float
) -> None:
    log.parent.mkdir()
    log.write_text("ValueError: of an earlier start\n")
    with pytest.raises(EngineDown, match=r"ended while it started: RuntimeError: no card \(.*engine.log\)"):
        start("--child", "drops", "--die", "RuntimeError: no card\nsee above", linger_s=linger_s)
    assert gone(child_of(log))


def test_a_start_may_take_long_if_it_makes_progress_and_is_given_up_if_not(start: Open, log: Path) -> None:
    # 30 lines, each well within the patience, all of them far beyond it.
    assert start("--lines", "30", "--pace", "0.1", start_s=2).start_seconds > 2.5
    with pytest.raises(EngineDown, match="said nothing for 1 s while it started"):
        start("--mute", digest="other", start_s=1)
    assert "loading 29" in log.read_text()


def test_a_command_that_is_not_there_is_told(lease: Lease, log: Path) -> None:
    with pytest.raises(EnvironmentFault, match=r"can't be started.*no-such-python"):
        open_engine(lease, ["/no-such-python"], "d", {}, 60, log, 30)
    with pytest.raises(EngineDown, match="FileNotFoundError"):
        open_engine(lease, ["/no-such-python"], "d", {}, 0, log, 30)


def test_variables_are_set_and_unset(start: Open, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIDDEN", "1")
    start(SHOWN="2", HIDDEN=None)
    assert 'environ {"SHOWN": "2", "HIDDEN": null}' in log.read_text()


def test_stop_all_stops_what_no_job_holds(place: Path, log: Path) -> None:
    engines = {}
    for name in "0123":
        with leases.lease([Device(name, None)], place=place) as held:
            engines[name] = open_engine(held, FAKE, "odd" if name in "13" else "even", {}, 60, log, 30)
    with leases.lease([Device("0", None)], place=place):
        assert stop_all(place, "odd") == 2
        assert gone(engines["1"].pid) and gone(engines["3"].pid) and engines["2"].alive()
        assert stop_all() == 1
        assert gone(engines["2"].pid) and engines["0"].alive()
    assert stop_all() == 1 and stop_all() == 0 and gone(engines["0"].pid)


def test_a_stranger_with_a_recorded_pid_is_left_alone(start: Open, place: Path) -> None:
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        for linger in (0, 60):
            record = f'{{"pid": {stranger.pid}, "digest": "d", "linger": {linger}, "socket": ""}}'
            leases.file(place, "0", "json").write_text(record)
            engine = start()
            assert engine.started and stranger.poll() is None
            engine.kill()
            assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_of_a_session_that_is_not_the_engines_only_the_holder_is_killed(start: Open, place: Path) -> None:
    path = leases.file(place, "0", "engine")
    # A shell leads a session with one process that holds the lock and one that doesn't.
    script = f"sleep 600 & echo $!; exec 9>>{path}; flock 9; sleep 601 & echo $!; exec 9>&-; wait"
    shell = subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert shell.stdout
    bystander, holder = int(shell.stdout.readline()), int(shell.stdout.readline())
    try:
        while holders.lives(shell.pid, path):
            time.sleep(0.01)
        assert leases.lock(path) is None
        assert start().started and gone(holder)
        assert holders.state(bystander) and holders.state(shell.pid)
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()


def test_what_cannot_be_killed_is_named(start: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = start()
    monkeypatch.setattr(holders, "DEATH_S", 0.1)
    monkeypatch.setattr(holders, "_signal", lambda members, number: None)  # as if it hung in its driver
    with pytest.raises(EnvironmentFault, match=rf"process {engine.pid} can't be ended"):
        start(digest="other")
    monkeypatch.undo()
    engine.kill()


def test_a_damaged_record_is_no_obstacle(start: Open, place: Path) -> None:
    first = start()
    for text in ("", "[]", '{"pid": "x"}'):
        leases.file(place, "0", "json").write_text(text)
        second = start()
        assert second.started and gone(first.pid)
        first = second


def test_a_path_that_is_too_long_for_a_socket_is_told(tmp_path: Path, log: Path) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    with leases.lease([GPU], place=deep) as lease, pytest.raises(EnvironmentFault, match="shorter folder"):
        open_engine(lease, FAKE, "d", {}, 60, log, 30)


def test_the_last_words_are_those_that_name_the_cause(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def of(text: str) -> str:
        log.write_text(text)
        return last_words(log).removesuffix(f" ({log})")

    core = "(EngineCore pid=7) ERROR [core.py:700] torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2 GiB"
    assert of(f"{core}\nTraceback:\nRuntimeError: Engine core failed. See root cause above.\n") == core
    assert (
        of("ImportError: no such module\nINFO resource_tracker: 1 leaked object\n\n") == "ImportError: no such module"
    )
    assert of("loading weights\n  87%\n\n") == "87%"
    assert of("") == "it said nothing"


# The drill: jobs, engines and children of engines are killed or stopped at random. Each engine locks a file that stands
# for its card, and a second one on the same card says so and fails.

MANY_JOBS = """
import random, sys, time
from pathlib import Path
from pdfquarry import engine_process, holders, leases
from pdfquarry.engine_process import EngineDown, lingers, open_engine
engine_process.GREET_S, holders.GRACE_S = 2, 0.3
chance, logs, served = random.Random(sys.argv[1]), Path(sys.argv[2]), 0
while served < int(sys.argv[3]):
    digest = chance.choice("ab")
    two = [leases.Device(name, None) for name in "01"]
    with leases.lease(two, lambda device: lingers(device, digest), wait_s=0.05) as held:
        name = held.device.name
        command = [*sys.argv[4:], "--card", str(logs / f"card-{name}"), "--child", chance.choice(["keeps", "apart"])]
        try:
            with open_engine(held, command, digest, {}, chance.choice([0, 60, 60]), logs / f"{name}.log", 20) as engine:
                time.sleep(chance.random() * 0.1)
                served += engine.alive()
        except EngineDown:
            pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_random_deaths_never_put_two_engines_on_a_card_and_leave_nothing(place: Path, seed: int) -> None:
    chance = random.Random(seed)
    logs = place / "logs"
    logs.mkdir()
    environ = os.environ | {"PYTHONPATH": str(ROOT / "workflow")}

    def work() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", MANY_JOBS, str(chance.random()), str(logs), "5", *FAKE]
        return subprocess.Popen(command, env=environ)

    jobs = [work() for _ in range(4)]
    killed = 0
    while killed < 25:
        time.sleep(chance.random() * 0.4)
        if chance.random() < 0.4:
            victim = chance.randrange(4)
            killed += jobs[victim].poll() is None
            jobs[victim].kill()
            jobs[victim].wait()
            jobs[victim] = work()
            continue
        name = chance.choice("01")
        path = leases.file(place, name, "engine")
        pid = engine_process._recorded(place, name)["pid"]
        if pid and holders.lives(pid, path):
            os.kill(pid, chance.choice([signal.SIGKILL, signal.SIGSTOP]))
            killed += 1
    assert all(job.wait(120) == 0 for job in jobs)
    stop_all()
    assert all((held := leases.attempt(Device(name, None), place)) and not held.close() for name in "01")
    said = "".join(path.read_text() for path in logs.glob("*.log"))
    assert "two engines" not in said
    started = [int(pid) for pid in re.findall(r"^(?:engine|child) (\d+)$", said, flags=re.M)]
    assert len(started) > 20
    for pid in started:
        cmdline = Path(f"/proc/{pid}/cmdline")
        assert gone(pid) or str(place) not in cmdline.read_text()


def test_the_engines_own_word_for_its_end_is_what_is_told(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("ServerError: refused; again in 8 s\nengine down: no server has answered for 8 s\nbye\n")
    assert engine_process.last_words(log) == f"no server has answered for 8 s ({log})"
    log.write_text("loading\nValueError: no such model\nbye\n")
    assert engine_process.last_words(log).startswith("ValueError: no such model")
