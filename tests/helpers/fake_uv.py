"""Stands in for uv: notes its calls, makes what looks like an environment, and fails or hangs where it is told to.

FAKE_UV names a folder. ``calls`` gets a line a call; ``fail`` holds the words to fail with at ``pip install``;
``hang``, when it is there, makes that call wait after half of the work, and ``hanging`` then gets the process id;
``headers.json`` and ``proof.json`` are what the Python of the environment says of itself.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

control = Path(os.environ["FAKE_UV"])
arguments = sys.argv[1:]
with open(control / "calls", "a") as calls:
    calls.write(json.dumps(arguments) + "\n")
if arguments[0] == "venv":
    python = Path(arguments[-1], "bin", "python")
    python.parent.mkdir(parents=True)
    python.write_text(
        f'#!/bin/sh\ncase "$3" in *Python.h*) cat {control}/headers.json;; *) cat "{python.parent}/proof.json";; esac\n'
    )
    python.chmod(0o755)
if arguments[:2] == ["pip", "install"]:
    python = Path(arguments[arguments.index("--python") + 1])
    if (control / "fail").exists():
        print((control / "fail").read_text(), file=sys.stderr)
        sys.exit(2)
    if (control / "hang").exists():
        python.with_name("half").touch()
        (control / "hanging.new").write_text(str(os.getpid()))
        (control / "hanging.new").rename(control / "hanging")
        time.sleep(600)
    python.with_name("proof.json").write_bytes((control / "proof.json").read_bytes())
