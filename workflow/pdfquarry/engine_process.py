"""The process on a GPU that a loaded model lives in: started or found by a job, and stopped. Linux only.

Who holds the lease of a device may touch its engine; nobody else does. Beside the lease lie the engine's files:

* ``gpu-0.engine``: locked for the whole life of the engine, through a descriptor that it inherits and need not know.
* ``gpu-0.json``: its pid and digest, and the seconds that it lingers.
* ``gpu-0.sock``: a Unix socket, there once the model is loaded. Whoever connects is greeted with one line,
  ``{"digest": "..."}``, and the engine counts as idle from the end of its last connection.

It leads a session of its own, and ``holders`` ends it with all that is in there. A child that closes the descriptor, as
multiprocessing's spawn does, isn't found any more once the engine is dead and its job as well: not to outlive an engine
that is killed, it must ask the kernel for that itself (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from pdfquarry import files, holders, leases
from pdfquarry.errors import EnvironmentFault
from pdfquarry.leases import Device, Lease

# Seconds that a live engine may take to greet.
GREET_S = 10
# The kernel's limit is 108 bytes.
_SOCKET_BYTES = 100

# Asks the kernel to kill this process when the thread that started it ends, then becomes the engine. A process in
# between rather than preexec_fn, which may deadlock in a job with threads.
_DIE_WITH_JOB = """
import ctypes, os, sys
if ctypes.CDLL(None, use_errno=True).prctl(1, 9) or os.getppid() != int(sys.argv[1]):
    sys.exit("the job that started this engine has ended")
os.execvp(sys.argv[2], sys.argv[2:])
"""


class EngineDown(Exception):
    """An engine did not start; the message has the last meaningful line of its log."""


class EngineProcess:
    """An engine that greets on ``socket``.

    Args:
        pid: its process, the leader of its session.
        started: whether this job started it; else it was found.
        start_seconds: how long it took until it greeted.
    """

    def __init__(self, lease: Lease, pid: int, linger_s: float, process: subprocess.Popen[bytes] | None) -> None:
        self.socket = leases.file(lease.folder, lease.device.name, "sock")
        self.pid = pid
        self.started = process is not None
        self.start_seconds = 0.0
        self._lock = leases.file(lease.folder, lease.device.name, "engine")
        self._linger_s = linger_s
        self._process = process

    def alive(self) -> bool:
        """Return whether its process is there. One that hangs is alive."""
        if self._process:  # not waited for before ``kill``, so that the pid, and with it the session, stays its own
            return holders.state(self.pid) is not None
        return holders.lives(self.pid, self._lock)

    def kill(self) -> None:
        """Stop it and everything of it. Raises EnvironmentFault when it can't be killed."""
        own = self._process is not None and self._process.returncode is None
        holders.end(self._lock, self.pid, own)
        if self._process:
            self._process.wait()

    def close(self) -> None:
        """Leave it to linger, or kill it if it isn't to."""
        if self._linger_s <= 0:
            self.kill()

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def open_engine(
    lease: Lease,
    command: list[str],
    digest: str,
    environ: Mapping[str, str | None],
    linger_s: float,
    log: Path,
    start_s: float,
) -> EngineProcess:
    """Return the engine that lingers on the leased device if it has the digest and greets; else start one there.

    Anything else that is left of an engine there is killed first.

    Args:
        lease: held until the engine is closed.
        command: starts an engine; ``--socket PATH --linger SECONDS --digest DIGEST`` is appended.
        digest: stands for all settings that the engine was started with.
        environ: variables that the engine has (a text) or lacks (None), beyond those of this process.
        linger_s: seconds that the engine waits for another job before it ends by itself. With 0 it ends with this
            job, also when that is killed, and a lingering one isn't reused; call from a thread that lives as long.
        log: where its output is appended.
        start_s: seconds without a new line in the log after which a starting engine is given up.

    Raises:
        EngineDown: it ended, or fell silent, before it greeted. Nothing of it is left.
        EnvironmentFault: what is there can't be killed, or the device's files can't be used.
    """
    begun = time.monotonic()
    path = leases.file(lease.folder, lease.device.name, "sock")
    if len(os.fsencode(path)) >= _SOCKET_BYTES:
        raise EnvironmentFault(f"{path}: too long a path for a socket; set PDFQUARRY_LOCKS to a shorter folder")
    state = _recorded(lease.folder, lease.device.name)
    # One that was not to linger may be about to die with its job.
    if linger_s > 0 and state["linger"] > 0 and state["digest"] == digest:
        found = EngineProcess(lease, state["pid"], linger_s, None)
        if found.alive() and _greets(path, digest):
            for kind in ("engine", "json", "sock"):  # for what clears out old temporary files: they are in use
                with contextlib.suppress(OSError):
                    os.utime(leases.file(lease.folder, lease.device.name, kind))
            found.start_seconds = time.monotonic() - begun
            return found
    _clear(lease)
    said = _size(log)
    engine = _start(lease, command, digest, environ, linger_s, log)
    try:
        record = {"pid": engine.pid, "digest": digest, "linger": linger_s, "socket": str(path)}
        files.write_json(leases.file(lease.folder, lease.device.name, "json"), record)
        _await(engine, digest, log, said, start_s)
    except BaseException:
        engine.kill()
        raise
    engine.start_seconds = time.monotonic() - begun
    return engine


def lingers(device: Device, digest: str, place: Path | None = None) -> bool:
    """Return whether an engine with this digest was left on a device: a hint for which to lease, for it may die."""
    place = place or leases.folder()
    state = _recorded(place, device.name)
    return state["linger"] > 0 and state["digest"] == digest and holders.state(state["pid"]) is not None


def stop_all(place: Path | None = None, digest: str | None = None) -> int:
    """Stop every engine of this user that no job holds, or those with a digest; return how many there were.

    Raises EnvironmentFault, when all others are stopped, for those that can't be killed.
    """
    place = place or leases.folder()
    stopped, faults = 0, []
    for path in sorted(place.glob("gpu-*.engine")):
        name = path.name.removeprefix("gpu-").removesuffix(".engine")
        if digest is not None and _recorded(place, name)["digest"] != digest:
            continue
        lease = leases.attempt(Device(name, None), place)
        if lease is None:
            continue
        with lease:
            try:
                stopped += _clear(lease)
            except EnvironmentFault as fault:
                faults.append(str(fault))
    if faults:
        raise EnvironmentFault("\n".join(faults))
    return stopped


def _recorded(place: Path, name: str) -> dict[str, Any]:
    """Return what was recorded of the last engine on a device."""
    try:
        state = json.loads(leases.file(place, name, "json").read_text())
        return {"pid": int(state["pid"]), "digest": str(state["digest"]), "linger": float(state["linger"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {"pid": 0, "digest": "", "linger": 0.0}


def _clear(lease: Lease) -> bool:
    """End what is left of an engine on a leased device; return whether there was anything."""
    pid = _recorded(lease.folder, lease.device.name)["pid"]
    ended = holders.end(leases.file(lease.folder, lease.device.name, "engine"), pid)
    for kind in ("json", "sock"):
        leases.file(lease.folder, lease.device.name, kind).unlink(missing_ok=True)
    return ended


def _start(
    lease: Lease, command: list[str], digest: str, environ: Mapping[str, str | None], linger_s: float, log: Path
) -> EngineProcess:
    """Start an engine on a device that is cleared for it."""
    lock, path = (leases.file(lease.folder, lease.device.name, kind) for kind in ("engine", "sock"))
    descriptor = leases.lock(lock)
    if descriptor is None:
        raise EnvironmentFault(f"{lock}: locked by a process that holds no lease; end it")
    command = [*command, "--socket", str(path), "--linger", f"{linger_s:g}", "--digest", digest]
    if linger_s <= 0:
        command = [sys.executable, "-I", "-S", "-c", _DIE_WITH_JOB, str(os.getpid()), *command]
    variables = {name: value for name, value in {**os.environ, **environ}.items() if value is not None}
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as out:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=variables,
                pass_fds=[descriptor],
                start_new_session=True,
            )
    except OSError as error:
        raise EnvironmentFault(f"the engine can't be started: {error}") from error
    finally:
        os.close(descriptor)
    return EngineProcess(lease, process.pid, linger_s, process)


def _size(log: Path) -> int:
    try:
        return log.stat().st_size
    except OSError:
        return 0


def _await(engine: EngineProcess, digest: str, log: Path, said: int, start_s: float) -> None:
    """Wait until a started engine greets. Raises EngineDown when it ends, or its log stands still for ``start_s``."""
    size, grown = said, time.monotonic()
    while not _greets(engine.socket, digest):
        if not engine.alive():
            raise EngineDown(f"the engine ended while it started: {last_words(log, said)}")
        now = time.monotonic()
        if _size(log) != size:
            size, grown = _size(log), now
        if now - grown > start_s:
            raise EngineDown(f"the engine said nothing for {start_s:g} s while it started: {last_words(log, said)}")
        time.sleep(0.1)


def _greets(path: Path, digest: str) -> bool:
    """Return whether an engine accepts a connection and greets with the digest."""
    line = b""
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(GREET_S)
        try:
            link.connect(str(path))
            while not line.endswith(b"\n") and len(line) < 4096:
                part = link.recv(4096)
                if not part:
                    return False
                line += part
            return bool(json.loads(line)["digest"] == digest)
        except (OSError, ValueError, KeyError, TypeError):
            return False


# Lines that follow the cause and say nothing of it.
_NOISE = re.compile(r"See root cause above|resource_tracker|destroy_process_group|^\s*(warnings\.warn|\^+\s*$)")
_DOWN = "engine down: "
_CAUSE = re.compile(r"\b(\w*(Error|Exception|Fault)\b: |[Kk]illed\b|out of memory)")


def last_words(log: Path, start: int = 0) -> str:
    """Return the line of a log, from the byte ``start``, that tells best why a process ended."""
    try:
        with open(log, "rb") as lines:
            lines.seek(max(start, lines.seek(0, os.SEEK_END) - 2**16))
            text = lines.read().decode(errors="replace")
    except OSError:
        text = ""
    said = [line.strip() for line in text.splitlines() if line.strip() and not _NOISE.search(line)]
    # The engine's own word for it comes before any error that it got over.
    own = [line.removeprefix(_DOWN) for line in said if line.startswith(_DOWN)]
    causes = own or [line for line in said if _CAUSE.search(line)] or said or ["it said nothing"]
    best = causes[-1]
    return f"{best[:500]} ({log})"
