"""What a hostile PDF makes native code do, as functions for a reader. Importable by name from a spawned process."""

from __future__ import annotations

import os
import signal
import time

from pdfquarry.readers import Beat


def prepare() -> None:
    """Nothing to load."""


def act(task: str, beat: Beat) -> str:
    """Do what ``task`` names."""
    beat(2, 3, 5, done=1)
    if task == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if task == "abort":
        os.abort()
    if task == "exit":
        os._exit(3)
    if task == "hang":
        time.sleep(600)
    if task == "slow":
        for _ in range(6):
            time.sleep(0.4)
            beat(2, 3, 5)
    if task == "allocate":
        return str(len(bytearray(2 * 2**30)))
    if task == "raise":
        raise ValueError("a bug")
    return f"{task} done"


def fail_to_prepare() -> None:
    """An engine that is not installed right."""
    raise ImportError("no engine here")


def die_preparing() -> None:
    """An engine whose native library kills the process that loads it."""
    os.kill(os.getpid(), signal.SIGKILL)
