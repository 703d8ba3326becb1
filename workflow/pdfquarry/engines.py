"""The engine that a job reads pages with: what it loads, on which GPU, in which Python, with which variables."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pdfquarry import __version__, engine_process, leases, models
from pdfquarry.arch import job_variables
from pdfquarry.arch import load as load_arch
from pdfquarry.errors import EnvironmentFault
from pdfquarry.gpus import Gpu
from pdfquarry.link import EngineLink
from pdfquarry.results import Results
from pdfquarry.settings import MODEL, Settings

ROOT = Path(__file__).resolve().parents[2]
# Starts of an engine that fail before the job gives up: the memory of one that was killed may not be free at once.
_TRIES = 2


@dataclass
class Machine:
    """What environment.json says of the machine that the job runs on."""

    arch: str
    gpus: list[Gpu]
    python: str
    versions: dict[str, str]

    @classmethod
    def of(cls, state: dict[str, Any]) -> Machine:
        """Return what environment.json's content says."""
        there = state["gpu_python"]
        packages = {name: one["version"] for name, one in there["packages"].items()}
        return cls(state["arch"], [Gpu(**gpu) for gpu in state["gpus"]], there["executable"], packages)

    @classmethod
    def read(cls, results: Results) -> Machine:
        """Return what environment.json says. Raises EnvironmentFault when it is missing or damaged."""
        path = results.root / "environment.json"
        try:
            return cls.of(json.loads(path.read_bytes()))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise EnvironmentFault(f"{path}: missing or damaged; delete it, and snakemake makes it again") from error


@dataclass
class EngineJob:
    """One job's engine: leases a GPU when the first page needs it, and starts or finds the process.

    Args:
        kind: vllm, http, transformers or doclayout-yolo.
        settings: of the run.
        machine: where it runs.
        log: file for what the engine prints.
    """

    kind: str
    settings: Settings
    machine: Machine
    log: Path
    variables: dict[str, str | None] = field(default_factory=dict)
    device: str = ""
    _lease: leases.Lease | None = None
    _place: Path | None = None
    _link: EngineLink | None = None

    def __post_init__(self) -> None:
        """Look for all that can be missing before a GPU is taken. Raises EnvironmentFault."""
        self.log = self.log.resolve()
        vlm = self.settings.vlm
        model = vlm.model or MODEL
        if self.kind == "doclayout-yolo":
            model = str(models.find_weights(self.settings.detector.weights))
        elif self.kind == "http":
            model = vlm.model
        else:
            model = str(models.find(model))
        known = load_arch(self.machine.arch).engine
        self.load = {
            "kind": self.kind,
            "model": model,
            "arguments": vlm.arguments,
            "known": {name: one.value for name, one in known.items()},
            "servers": vlm.servers,
            "patience": vlm.stall_seconds,
            "max_tokens": vlm.max_tokens,
        }
        self._check()

    def link(self) -> EngineLink:
        """Return the link, which opens the engine with the first page."""
        if self._link is None:
            self._link = EngineLink(self._start, self.settings.vlm.stall_seconds)
        return self._link

    def release(self) -> None:
        """Give the GPU back."""
        if self._lease is not None:
            self._lease.close()
            self._lease = None
        if self._place is not None:
            shutil.rmtree(self._place, ignore_errors=True)

    def _check(self) -> None:
        from packaging.version import Version

        from pdfquarry_kernels.mineru import version_problems

        if self.kind == "doclayout-yolo":
            if "doclayout-yolo" not in self.machine.versions:
                where, remedy = self.machine.python, "pip install doclayout-yolo huggingface_hub (AGPL)"
                raise EnvironmentFault(f"layout: doclayout-yolo is not installed in {where}: {remedy}")
            return
        vllm, client = self.machine.versions.get("vllm"), self.machine.versions.get("mineru-vl-utils")
        backend = {"vllm": "vllm-async-engine", "http": "http-client"}.get(self.kind, self.kind)
        environ = {"VLLM_USE_V2_MODEL_RUNNER": "0"}  # which _variables sets
        problems = [str(one) for one in version_problems(vllm, client, backend, environ) if one.fatal]
        if client and Version(client) < Version("1.2"):
            problems.append(f"mineru-vl-utils {client} is too old for engine: {self.kind}: install 1.2 or later")
        if problems:
            where = f"engine: {self.kind}, in {self.machine.python}"
            raise EnvironmentFault("\n".join(f"{where}: {problem}" for problem in problems))

    def _start(self) -> engine_process.EngineProcess:
        if self._lease is None:
            self._lease = self._take()
            self.device = self._lease.device.name
        self.variables = self._variables(self._lease.device)
        command = [self.machine.python, "-m", "pdfquarry.engine.host", "--job", json.dumps(self.load)]
        vlm = self.settings.vlm
        linger = 0.0 if self.kind == "http" else vlm.linger_seconds
        for left in reversed(range(_TRIES)):
            try:
                return engine_process.open_engine(
                    self._lease, command, self.digest(), self.variables, linger, self.log, vlm.stall_seconds
                )
            except engine_process.EngineDown as down:
                if not left or self.kind == "http":
                    raise EnvironmentFault(f"engine: {self.kind} does not start: {down}") from None
                _say(f"engine: {self.kind} did not start ({down}); trying again")
        raise AssertionError

    def _take(self) -> leases.Lease:
        """Lease a GPU, one whose engine another job has left if there is one; http takes none, and shares nothing."""
        if self.kind == "http":
            self._place = Path(tempfile.mkdtemp(prefix="quarry-"))
            return leases.lease([leases.Device("http", None)], place=self._place)
        devices = leases.devices(self.settings.gpus, self.machine.gpus, self.machine.arch, os.environ)
        return leases.lease(devices, lambda device: engine_process.lingers(device, self.digest()), say=_say)

    def digest(self) -> str:
        """Return 16 hex digits that differ when an engine that another job has left is not the one wanted."""
        own = sorted(self.settings.environment.variables.items())
        parts = [__version__, self.load, own, self.machine.python, self.machine.arch, _patches_mode()]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

    def _variables(self, device: leases.Device) -> dict[str, str | None]:
        own = self.settings.environment.variables
        found = job_variables(self.machine.arch, own, os.environ, device.index)
        paths = [str(ROOT / "workflow"), str(ROOT / "kernels")]
        if "pdf-quarry" not in self.machine.versions:
            paths.append(str(_entry_points(self.log.parent)))
        ours: dict[str, str | None] = {
            "PYTHONPATH": os.pathsep.join(dict.fromkeys([*paths, *os.environ.get("PYTHONPATH", "").split(os.pathsep)])),
            "PYTHONSAFEPATH": "1",
            "PYTHONUNBUFFERED": "1",
            "PDFQUARRY_PATCHES_STATUS": str(self.log.parent / f"patches-{device.name}"),
            # mineru-vl-utils' logits processor is of vLLM's V1 runner; from 0.31 on another is the default.
            "VLLM_USE_V2_MODEL_RUNNER": "0",
            # Nothing is fetched, and nobody is told.
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
        }
        return {name: value for name, value in ours.items() if name not in own} | found


def _patches_mode() -> str:
    return os.environ.get("PDFQUARRY_PATCHES", "")


def _entry_points(folder: Path) -> Path:
    """Return a folder by which vLLM finds the plugin in a Python that pdf-quarry is not installed in."""
    info = folder / "site" / f"pdf_quarry-{__version__}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: pdf-quarry\nVersion: {__version__}\n")
    plugin = "[vllm.general_plugins]\npdfquarry = pdfquarry_kernels.vllm_plugin:register\n"
    (info / "entry_points.txt").write_text(plugin)
    return info.parent


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
