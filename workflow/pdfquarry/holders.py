"""Ends the processes that hold a lock file open, and their sessions, and no stranger. Linux only.

A process is started with the locked file as the leader of a session of its own. Its pid alone, read from a record,
proves nothing: it may be a stranger's by now. Who has the file open is one of ours, and so is the session of the
leader as long as anyone in it has the file open.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from pdfquarry import leases
from pdfquarry.errors import EnvironmentFault

# Seconds that a process may take to give up its own files before it is killed, and that the kernel may take to end a
# killed one: drivers hold the dying for a while.
GRACE_S = 5
DEATH_S = 60


def end(lock: Path, leader: int, own: bool = False) -> bool:
    """End all that hold the lock file open, and the session of its leader; return whether there was anything.

    Args:
        lock: the file, to which nobody else has access now. It is free afterwards.
        leader: the pid that was recorded of the session's leader; 0 if none was.
        own: the leader is a child of this process, not yet waited for, so that the session is its own in any case.

    Raises EnvironmentFault, naming the processes, when some live on a minute after they were killed.
    """
    sessions = {leader} if own else set()
    begun = time.monotonic()
    asked = False
    while True:
        descriptor = leases.lock(lock)
        if descriptor is not None:
            os.close(descriptor)
        # Nobody holds the file: whoever is left of a session that was seen to be ours is all that there can be.
        members = _members(lock if descriptor is None else None, leader, sessions)
        if descriptor is not None and not members:
            return asked
        waited = time.monotonic() - begun
        if waited > GRACE_S + DEATH_S:
            who = f"process {', '.join(map(str, members))}" if members else "a process that can't be seen from here"
            raise EnvironmentFault(
                f"{lock}: {who} can't be ended; if dmesg has it hang in a driver, restart the machine"
            )
        if not asked or waited > GRACE_S:
            _signal(members, signal.SIGKILL if asked else signal.SIGTERM)
        asked = True
        time.sleep(0.02 if waited < 1 else 0.2)


def lives(pid: int, lock: Path) -> bool:
    """Return whether a process lives and has the lock file open."""
    try:
        return state(pid) is not None and _holds(pid, lock.stat())
    except OSError:
        return False


def state(pid: int) -> tuple[int, int] | None:
    """Return the process group and session of a process of this user; None when there is none that lives."""
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.getuid():
            return None
        with open(f"/proc/{pid}/stat", "rb") as fields:
            # The name in parentheses may hold anything; state, parent, group and session follow it.
            letter, _, group, session = fields.read().rpartition(b")")[2].split()[:4]
    except (OSError, ValueError):
        return None
    return None if letter in b"ZX" else (int(group), int(session))


def _members(lock: Path | None, leader: int, sessions: set[int]) -> dict[int, int]:
    """Return pid -> process group of what is to end, 0 for a group that isn't all ours; add to ``sessions``."""
    if lock is None and not sessions:
        return {}
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    living = {pid: found for pid in pids if pid != os.getpid() and (found := state(pid))}
    file = lock.stat() if lock else None
    holders = {pid for pid in living if file and _holds(pid, file)}
    # A holder in any other session is a stray, say a child that a job forked: those around it are strangers.
    sessions |= {living[pid][1] for pid in holders if living[pid][1] in (pid, leader)} - {0, os.getsid(0)}
    return {
        pid: group if session in sessions else 0
        for pid, (group, session) in living.items()
        if session in sessions or pid in holders
    }


def _signal(members: dict[int, int], number: int) -> None:
    """Signal the groups, which can't fork their way out of that, and every process."""
    for send, targets in ((os.killpg, {*members.values()} - {0}), (os.kill, set(members))):
        for target in targets:
            try:
                send(target, number)
            except (ProcessLookupError, PermissionError):
                continue


def _holds(pid: int, file: os.stat_result) -> bool:
    """Return whether a process has a file open."""
    try:
        links = [f"/proc/{pid}/fd/{name}" for name in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        return False
    for link in links:
        try:
            # Most are no files at all, and looking at one on a dead network drive would hang.
            if os.path.basename(os.readlink(link)).startswith("gpu-") and os.path.samestat(os.stat(link), file):
                return True
        except OSError:
            continue
    return False
