"""An engine without a model: it says some lines, listens, greets, and ends when it was idle for long enough.

It can misbehave: --die WORDS after the lines; --child keeps or drops the inherited lock file, or leads a session of its
own; --mute loads for ever; --stubborn shrugs SIGTERM off. --card FILE is its card, which has room for one engine.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket")
    parser.add_argument("--linger", type=float)
    parser.add_argument("--digest")
    parser.add_argument("--lines", type=int, default=1)
    parser.add_argument("--pace", type=float, default=0)
    parser.add_argument("--die", default="")
    parser.add_argument("--mute", action="store_true")
    parser.add_argument("--stubborn", action="store_true")
    parser.add_argument("--child", choices=["keeps", "drops", "apart"])
    parser.add_argument("--card")
    options = parser.parse_args()
    print("engine", os.getpid(), flush=True)
    if options.card:
        card = os.open(options.card, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(card, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit("two engines on one card")
    if options.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.child:
        apart = options.child == "apart"
        command = ["sh", "-c", "sleep 600 & wait", str(options.socket)]
        child = subprocess.Popen(command, close_fds=options.child == "drops", start_new_session=apart)
        print("child", child.pid, flush=True)
    print("environ", json.dumps({name: os.environ.get(name) for name in ("SHOWN", "HIDDEN")}), flush=True)
    for number in range(options.lines):
        print("loading", number, flush=True)
        time.sleep(options.pace)
    if options.die:
        sys.exit(options.die)
    if options.mute:
        signal.pause()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(options.socket)
        server.listen()
        server.settimeout(options.linger or None)
        while True:
            try:
                link, _ = server.accept()
            except TimeoutError:
                return
            with link:
                link.sendall(json.dumps({"digest": options.digest}).encode() + b"\n")


if __name__ == "__main__":
    main()
