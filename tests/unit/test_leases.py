"""One job a GPU, whoever started it, and whatever kills it; and a scheduler's assignment is kept."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdfquarry import leases
from pdfquarry.errors import EnvironmentFault
from pdfquarry.gpus import Gpu
from pdfquarry.leases import Device, devices, lease
from project import ROOT

THREE = [Device(name, int(name)) for name in "012"]


def card(index: int, arch: str = "gfx1100", source: str = "kernel driver") -> Gpu:
    return Gpu(index, arch, "", 24560, None, source)


FOUR = [card(index) for index in range(4)]


# Which devices


def test_auto_takes_all_cards_of_the_architecture_and_no_others() -> None:
    mixed = [card(0), card(1, "gfx1036"), card(2, "gfx1201"), card(3)]
    assert devices("auto", mixed, "gfx1100", {}) == [Device("0", 0), Device("3", 3)]
    assert devices("auto", mixed, "gfx1201", {}) == [Device("2", 2)]


def test_a_list_takes_those_and_a_wrong_one_is_told_what_is_there() -> None:
    mixed = [card(0), card(1, "gfx1201"), card(2)]
    assert devices([2, 0, 2], mixed, "gfx1100", {}) == [Device("2", 2), Device("0", 0)]
    for wrong in ([1], [5], [0, 5], []):
        with pytest.raises(EnvironmentFault, match=r"there is: 0 \(gfx1100\), 1 \(gfx1201\), 2 \(gfx1100\)"):
            devices(wrong, mixed, "gfx1100", {})
    with pytest.raises(EnvironmentFault, match="no GPU of gfx1100 here; there is: none"):
        devices("auto", [], "gfx1100", {})


def test_the_cpu_is_one_device_without_a_number() -> None:
    assert devices("auto", [], "cpu", {"SLURM_JOB_ID": "1", "CUDA_VISIBLE_DEVICES": "0"}) == [Device("cpu", None)]


@given(
    mask=st.lists(st.integers(0, 7), min_size=1, max_size=8, unique=True),
    source=st.sampled_from(["torch", "rocminfo", "amd-smi", "kernel driver"]),
    name=st.sampled_from(["HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"]),
)
def test_a_users_mask_means_the_same_cards_whatever_source_numbered_them(
    mask: list[int], source: str, name: str
) -> None:
    renumbers = source == "torch" or (source == "rocminfo" and name == "ROCR_VISIBLE_DEVICES")
    found = [card(index, source=source) for index in range(len(mask) if renumbers else 8)]
    environ = {name: ",".join(map(str, mask))}
    assert {one.index for one in devices("auto", found, "gfx1100", environ)} == set(mask)


def test_masks_are_read_as_the_runtimes_read_them() -> None:
    def taken(**environ: str) -> list[int | None]:
        return [one.index for one in devices("auto", FOUR, "gfx1100", environ)]

    assert taken(HIP_VISIBLE_DEVICES="2,-1,3") == [2]
    assert taken(HIP_VISIBLE_DEVICES=" 3 , 1") == [1, 3]
    assert taken(CUDA_VISIBLE_DEVICES="1") == [1]
    assert taken(ROCR_VISIBLE_DEVICES="2,3", HIP_VISIBLE_DEVICES="1") == [3]
    with pytest.raises(EnvironmentFault, match="HIP_VISIBLE_DEVICES=-1 leaves no GPU of gfx1100"):
        taken(HIP_VISIBLE_DEVICES="-1")
    with pytest.raises(EnvironmentFault, match="by number"):
        taken(ROCR_VISIBLE_DEVICES="GPU-1a2b3c")


def slurm(**environ: str) -> list[Device]:
    return devices("auto", FOUR, "gfx1100", {"SLURM_JOB_ID": "77", **environ})


def test_one_card_from_slurm_keeps_its_masks() -> None:
    assert slurm(ROCR_VISIBLE_DEVICES="0", CUDA_VISIBLE_DEVICES="0") == [Device("slurm-77-0", None)]
    assert slurm(ROCR_VISIBLE_DEVICES="2") == [Device("slurm-77-2", None)]
    assert slurm(ROCR_VISIBLE_DEVICES="GPU-1a2b") == [Device("slurm-77-GPU-1a2b", None)]
    assert devices([3], FOUR, "gfx1100", {"SLURM_JOB_ID": "77", "ROCR_VISIBLE_DEVICES": "2"})[0].name == "slurm-77-2"


def test_masks_of_slurm_that_lead_nowhere_together_become_one() -> None:
    assert slurm(ROCR_VISIBLE_DEVICES="1", CUDA_VISIBLE_DEVICES="1") == [Device("slurm-77-1", 1)]


def test_of_several_cards_from_slurm_a_job_takes_one() -> None:
    both = [Device("slurm-77-1", 1), Device("slurm-77-3", 3)]
    assert slurm(ROCR_VISIBLE_DEVICES="1,3", CUDA_VISIBLE_DEVICES="1,3") == both
    assert slurm(ROCR_VISIBLE_DEVICES="GPU-a,GPU-b") == [Device("slurm-77-GPU-a", None)]


def test_steps_that_all_call_their_card_0_do_not_wait_for_each_other() -> None:
    first, second = (slurm(ROCR_VISIBLE_DEVICES="0", SLURM_STEP_GPUS=gpu) for gpu in "12")
    assert first != second and {first[0].index, second[0].index} == {None}


def test_slurm_without_a_card_says_so_and_without_masks_has_assigned_nothing() -> None:
    with pytest.raises(EnvironmentFault, match="slurm-77 gave this job no GPU"):
        slurm(CUDA_VISIBLE_DEVICES="NoDevFiles")
    assert len(slurm()) == 4


def test_a_pod_keeps_what_it_was_given() -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "extract-5"}
    assert devices("auto", FOUR[:1], "gfx1100", environ) == [Device("pod-extract-5-0", None)]
    assert [one.index for one in devices("auto", FOUR[:2], "gfx1100", environ)] == [0, 1]


# The locks


def test_a_leased_device_is_not_leased_again_until_it_is_given_back(tmp_path: Path) -> None:
    held = [lease(THREE, place=tmp_path) for _ in THREE]
    assert [one.device for one in held] == THREE
    assert [leases.attempt(device, tmp_path) for device in THREE] == [None] * 3
    with held[1]:
        pass
    with lease(THREE, place=tmp_path) as again:
        assert again.device == THREE[1]
    held[0].close()
    held[2].close()


def test_preferred_devices_are_tried_first(tmp_path: Path) -> None:
    def last(device: Device) -> bool:
        return device.name == "2"

    with lease(THREE, last, tmp_path) as first, lease(THREE, last, tmp_path) as second:
        assert (first.device.name, second.device.name) == ("2", "0")


def test_a_waiting_job_says_so_once_and_starts_when_a_device_is_free(tmp_path: Path) -> None:
    held = lease(THREE[:1], place=tmp_path)
    said: list[str] = []
    rounds = 0

    def prefer(_: Device) -> bool:
        nonlocal rounds
        rounds += 1
        if rounds == 5:
            held.close()
        return True

    with lease(THREE[:1], prefer, tmp_path, 0.01, said.append) as got:
        assert got.device == THREE[0]
    assert rounds == 5 and len(said) == 1 and said[0].startswith("waiting for a GPU: other jobs hold 0")


def test_a_childs_life_does_not_hold_a_dead_jobs_lease(tmp_path: Path) -> None:
    held = lease(THREE[:1], place=tmp_path)
    reading, writing = os.pipe()
    forked = os.fork()
    if not forked:
        os.write(writing, b"x")
        signal.pause()
    assert os.read(reading, 1) == b"x"
    started = subprocess.Popen(["sleep", "600"], close_fds=False)
    try:
        assert leases.attempt(THREE[0], tmp_path) is None  # the child has let go of its copy only
        held.close()
        again = leases.attempt(THREE[0], tmp_path)
        assert again
        again.close()
    finally:
        for pid in (forked, started.pid):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(forked, 0)
        started.wait()


def test_a_lock_on_a_file_that_was_deleted_meanwhile_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gpu-0.lease"
    flock = leases.fcntl.flock

    def late(descriptor: int, how: int) -> None:
        flock(descriptor, how)
        path.unlink()

    monkeypatch.setattr(leases.fcntl, "flock", late)
    assert leases.lock(path) is None


def test_the_folder_is_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PDFQUARRY_LOCKS", raising=False)
    monkeypatch.setattr(leases.tempfile, "gettempdir", lambda: str(tmp_path))
    place = leases.folder()
    assert place == tmp_path / f"pdfquarry-gpus-{os.getuid()}" and place.stat().st_mode & 0o777 == 0o700
    place.chmod(0o777)
    assert leases.folder().stat().st_mode & 0o777 == 0o700

    monkeypatch.setenv("PDFQUARRY_LOCKS", str(tmp_path / "a" / "b"))
    assert leases.folder() == tmp_path / "a" / "b"
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "file").touch()
    for wrong in ("link", "file", "file/below"):
        monkeypatch.setenv("PDFQUARRY_LOCKS", str(tmp_path / wrong))
        with pytest.raises(EnvironmentFault, match="PDFQUARRY_LOCKS"):
            leases.folder()


def test_a_folder_of_someone_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDFQUARRY_LOCKS", str(tmp_path))
    own = os.getuid()
    monkeypatch.setattr(leases.os, "getuid", lambda: own + 1)
    with pytest.raises(EnvironmentFault, match="no folder of this user"):
        leases.folder()


# The drill: jobs that take leases again and again are killed at random. Each writes a line when it has a device and
# one before it gives it back; times are of the host's monotonic clock, so that the lines of all jobs can be compared.

JOB = """
import os, random, sys, time
from pathlib import Path
from pdfquarry.leases import Device, lease
place, record, seed = Path(sys.argv[1]), os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND), int(sys.argv[3])
chance = random.Random(seed)
def say(what, device):
    os.write(record, f"{what} {device.name} {os.getpid()} {time.monotonic_ns()}\\n".encode())
for _ in range(int(sys.argv[4])):
    three = [Device(name, int(name)) for name in "012"]
    with lease(three, lambda device: chance.random() < 0.5, place, 0.002) as held:
        say("begin", held.device)
        time.sleep(chance.random() * 0.02)
        say("end", held.device)
"""


def overlaps(lines: list[str], killed: dict[int, int]) -> list[str]:
    """Return the lines at which a device had two holders. A killed job holds what it had until it was seen dead."""
    holders: dict[str, str] = {}
    bad = []
    for line in sorted(lines, key=lambda one: int(one.split()[3])):
        what, device, pid, _ = line.split()
        if what == "end":
            bad += [line] if holders.pop(device, "") != pid else []
            continue
        before = holders.get(device)
        # The next may come as soon as the signal is sent: before that, the killed job was alive and held it.
        if before and int(line.split()[3]) < killed.get(int(before), 2**63):
            bad.append(line)
        holders[device] = pid
    return bad


def test_the_checker_sees_two_holders() -> None:
    assert not overlaps(["begin 0 1 10", "end 0 1 20", "begin 0 2 21", "begin 1 3 22"], {})
    assert overlaps(["begin 0 1 10", "begin 0 2 15", "end 0 1 20"], {})
    assert overlaps(["begin 0 1 10", "begin 0 2 15"], {1: 16}) and not overlaps(
        ["begin 0 1 10", "begin 0 2 15"], {1: 14}
    )


def drill(folder: Path, seed: int, rounds: int, kills: int) -> None:
    place, record = folder / "locks", folder / f"record-{seed}"
    place.mkdir(exist_ok=True)
    record.touch()
    chance = random.Random(seed)
    environ = os.environ | {"PYTHONPATH": str(ROOT / "workflow")}

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", JOB, place, record, str(chance.random())[2:], str(rounds)]
        return subprocess.Popen(command, env=environ)

    jobs = [start() for _ in range(8)]
    killed: dict[int, int] = {}
    holding = 0
    while holding < kills:
        time.sleep(chance.random() * 0.05)
        last = record.read_text().split("\n")[-2:][0].split()
        # Most kills hit the job that wrote last, which is then likely to hold a device; the others hit any.
        pids = [job.pid for job in jobs]
        aimed = chance.random() < 0.7 and last and int(last[2]) in pids
        victim = pids.index(int(last[2])) if aimed else chance.randrange(8)
        at = time.monotonic_ns()
        if jobs[victim].poll() is None:
            jobs[victim].kill()
            jobs[victim].wait()
            killed[jobs[victim].pid] = at
            own = [line for line in record.read_text().splitlines() if line.split()[2] == str(jobs[victim].pid)]
            holding += bool(own) and own[-1].startswith("begin")
        jobs[victim] = start()
    assert all(job.wait(60) == 0 for job in jobs)
    lines = record.read_text().splitlines()
    assert overlaps(lines, killed) == []
    assert len(lines) >= 8 * rounds and {line.split()[1] for line in lines} == set("012")
    held = [leases.attempt(device, place) for device in THREE]
    assert all(held)
    for one in held:
        one.close()


def test_eight_jobs_on_three_devices_with_random_kills_never_share_one_and_leak_none(tmp_path: Path) -> None:
    drill(tmp_path, seed=1, rounds=20, kills=10)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 8))
def test_the_drill_with_more_seeds(tmp_path: Path, seed: int) -> None:
    drill(tmp_path, seed, rounds=100, kills=60)
