"""Who uses which GPU: a lock file for each device, in one folder for everything that this user runs on this host.

The kernel drops a lock when its holder dies, whatever killed it, so there is nothing to clean up and nothing to time
out. Lock files are never deleted: a lock on a deleted file would exclude nobody.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

from pdfquarry.errors import EnvironmentFault
from pdfquarry.gpus import MASKS, Gpu, mask_problems

# What a mask may hold; the runtimes read it up to the first entry that is none (-1, NoDevFiles).
_ENTRY = re.compile(r"\d+|(GPU|MIG)-\S+")


@dataclass(frozen=True, slots=True)
class Device:
    """What one job works on.

    Args:
        name: names the lock files: "0", "cpu", or under a scheduler "slurm-4711-0".
        index: its number for HIP_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES, without masks; None leaves the masks as the
            scheduler has set them.
    """

    name: str
    index: int | None


def devices(
    chosen: Literal["auto"] | list[int], found: list[Gpu], arch: str, environ: Mapping[str, str]
) -> list[Device]:
    """Return the devices that a job may take, at least one.

    What a scheduler gave is kept, whatever ``chosen`` says. Elsewhere auto takes every GPU of ``arch`` that the masks
    leave, and a list takes those, by their numbers without masks.

    Args:
        chosen: the setting.
        found: the GPUs, looked up on this host with the same masks as in ``environ``.
        arch: the architecture to work on, or cpu.
        environ: the environment of the job.

    Raises EnvironmentFault when there is no such GPU, naming what is there.
    """
    if arch == "cpu":
        return [Device("cpu", None)]
    visible = _visible(arch, environ)
    scheduler = _scheduler(environ)
    if scheduler and visible == []:
        raise EnvironmentFault(f"{scheduler} gave this job no GPU: ask for one in its resources")
    there = _numbered(found, visible, environ)
    names = ", ".join(f"{index} ({gpu.arch})" for index, gpu in there.items()) or "none that any tool names"
    if not any(gpu.arch == arch for gpu in found):
        raise EnvironmentFault(f"no GPU of {arch} here; there is: {names}")
    if scheduler:
        return _assigned(scheduler, [str(gpu.index) for gpu in found] if visible is None else visible, environ)
    masks = " ".join(f"{name}={environ[name]}" for name in MASKS if name in environ)
    if visible is not None and not all(one.isdigit() for one in visible):
        raise EnvironmentFault(f"{masks}: name the GPUs by number, so that all runs on this host mean the same ones")
    if chosen == "auto":
        fitting = [i for i, gpu in there.items() if gpu.arch == arch and (visible is None or str(i) in visible)]
        if not fitting:
            raise EnvironmentFault(f"{masks} leaves no GPU of {arch}; there is: {names}")
        return [Device(str(index), index) for index in fitting]
    for index in chosen:
        if index not in there or there[index].arch != arch:
            hidden = f", and {masks} may hide others" if masks else ""
            raise EnvironmentFault(f"GPU {index} was chosen and is no {arch} here; there is: {names}{hidden}")
    if not chosen:
        raise EnvironmentFault(f"an empty list of GPUs was chosen; there is: {names}")
    return [Device(str(index), index) for index in dict.fromkeys(chosen)]


def _scheduler(environ: Mapping[str, str]) -> str:
    """Return a name for what has assigned GPUs to this job, empty without one.

    It is part of the devices' names: in the control group of a job GPUs are numbered from 0, so the 0 of one job is
    another card than the 0 of the next, and processes of another pod can't even be seen.
    """
    if "SLURM_JOB_ID" in environ and any(name in environ for name in MASKS):
        return "slurm-" + environ["SLURM_JOB_ID"]
    if "KUBERNETES_SERVICE_HOST" in environ:
        return "pod-" + environ.get("HOSTNAME", "")
    return ""


def _visible(arch: str, environ: Mapping[str, str]) -> list[str] | None:
    """Return the GPUs that the masks leave, by number without masks or by UUID; None when nothing masks."""
    hip, cuda, rocr = (
        list(dict.fromkeys(itertools.takewhile(_ENTRY.fullmatch, re.split(r"\s*,\s*", environ[name].strip()))))
        if name in environ
        else None
        for name in MASKS
    )
    if arch.startswith("sm_"):
        return cuda
    inner = hip if hip is not None else cuda
    if rocr is None or inner is None:
        return rocr if inner is None else inner
    if inner == rocr:  # SLURM sets ROCR's and CUDA's alike, and means the same GPUs by them
        return rocr
    # ROCR's filters first, and the numbers of the other count what is left.
    return [rocr[int(one)] for one in inner if one.isdigit() and int(one) < len(rocr)]


def _numbered(found: list[Gpu], visible: list[str] | None, environ: Mapping[str, str]) -> dict[int, Gpu]:
    """Return the GPUs by number without masks: torch counts what all masks leave, rocminfo what ROCR's leaves."""
    source = found[0].source if found else ""
    rocr = _visible("gfx", {"ROCR_VISIBLE_DEVICES": environ[MASKS[2]]}) if MASKS[2] in environ else None
    obeyed = visible if source == "torch" else rocr if source == "rocminfo" else None
    if obeyed is None:
        return {gpu.index: gpu for gpu in found}
    return {int(one): gpu for one, gpu in zip(obeyed, found, strict=False) if one.isdigit()}


def _assigned(scheduler: str, ids: list[str], environ: Mapping[str, str]) -> list[Device]:
    """Return the devices that a scheduler gave, by number without masks or by UUID, at least one."""
    numbers = [int(one) for one in ids if one.isdigit()]
    # Numbers on the node, where SLURM tells them: steps of one job, too, may each call their GPU 0.
    on_node = environ.get("SLURM_STEP_GPUS", environ.get("SLURM_JOB_GPUS", "")).split(",")
    titles = on_node if len(on_node) == len(ids) and all(on_node) else ids
    names = [re.sub(r"[^\w.-]", "_", f"{scheduler}-{title}") for title in titles]
    if len(ids) == 1:
        # Masks that lead nowhere together (ROCR's and CUDA's 1, say) are replaced by one.
        return [Device(names[0], numbers[0] if numbers and any(mask_problems(environ)) else None)]
    if len(numbers) < len(ids):  # by UUID: the masks stay, and the first of several is what a job takes
        return [Device(names[0], None)]
    return [Device(name, number) for name, number in zip(names, numbers, strict=True)]


class Lease:
    """The right to use a device, until it is closed or this process dies.

    Children don't inherit it, and one that was forked without exec lets go of its copy: a job's death frees its GPU,
    whatever of it lives on.
    """

    def __init__(self, device: Device, folder: Path, descriptor: int) -> None:
        self.device = device
        self.folder = folder
        self._descriptor = descriptor
        _held.add(self)

    def close(self) -> None:
        """Give the device back."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            _held.discard(self)
            os.close(descriptor)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


_held: set[Lease] = set()


def _forget() -> None:
    """Close a forked child's copies; the parent's locks stand until its own descriptors are closed."""
    for held in list(_held):
        held.close()


os.register_at_fork(after_in_child=_forget)


def folder() -> Path:
    """Return the folder of the lock files, made if need be: in the temporary folder, or PDFQUARRY_LOCKS.

    Raises EnvironmentFault when it can't be made or belongs to someone else, who could then meddle.
    """
    named = os.environ.get("PDFQUARRY_LOCKS")
    path = Path(named) if named else Path(tempfile.gettempdir()) / f"pdfquarry-gpus-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, parents=bool(named), exist_ok=True)
        state = path.lstat()
        if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid():
            raise EnvironmentFault(f"{path}: is no folder of this user; remove it, or set PDFQUARRY_LOCKS to another")
        if stat.S_IMODE(state.st_mode) != 0o700:
            path.chmod(0o700)
    except OSError as error:
        reason = error.strerror or error
        raise EnvironmentFault(f"{path}: can't hold lock files ({reason}); set PDFQUARRY_LOCKS to a folder") from error
    return path


def file(place: Path, name: str, kind: str) -> Path:
    """Return the path of a device's file: its lease, or engine, json, sock of the process that works on it."""
    return place / f"gpu-{name}.{kind}"


def lock(path: Path) -> int | None:
    """Return a descriptor that holds the lock on a file, which is made if need be; None when another holds it.

    Raises EnvironmentFault when the file can't be opened or locked.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise EnvironmentFault(f"{path}: can't be opened ({error.strerror}); see PDFQUARRY_LOCKS") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.utime(descriptor)  # whatever clears out old temporary files sees that it is in use
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError as error:
        os.close(descriptor)
        raise EnvironmentFault(f"{path}: can't be locked ({error.strerror}); set PDFQUARRY_LOCKS") from error
    os.close(descriptor)
    return None


def attempt(device: Device, place: Path) -> Lease | None:
    """Return a lease on the device, or None while another holds it."""
    descriptor = lock(file(place, device.name, "lease"))
    return None if descriptor is None else Lease(device, place, descriptor)


def lease(
    among: list[Device],
    prefer: Callable[[Device], bool] | None = None,
    place: Path | None = None,
    wait_s: float = 0.5,
    say: Callable[[str], None] | None = None,
) -> Lease:
    """Return a lease on one of the devices, waiting for as long as others hold them all.

    Args:
        among: the devices, at least one.
        prefer: those are tried first.
        place: the folder of the lock files.
        wait_s: seconds between two rounds.
        say: called once, with a line, when it has to wait.
    """
    if not among:
        raise ValueError("no device to lease")
    place = place or folder()
    while True:
        for device in sorted(among, key=lambda one: not prefer(one)) if prefer else among:
            held = attempt(device, place)
            if held:
                return held
        if say:
            say(f"waiting for a GPU: other jobs hold {', '.join(one.name for one in among)} (locks in {place})")
            say = None
        time.sleep(wait_s)
