"""Where a model's files are on this machine. Nothing is fetched: the error names the command that does."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from pdfquarry.errors import EnvironmentFault


def find(
    model: str, environ: Mapping[str, str] = os.environ, setting: str = "vlm.model", mark: str = "config.json"
) -> Path:
    """Return the folder of a model.

    Args:
        model: a folder, or an id such as ``opendatalab/MinerU2.5-2509-1.2B``, which is looked up in the caches of
            Hugging Face and ModelScope; MINERU_MODEL_SOURCE (huggingface, modelscope) names the only one to look in,
            and ``local`` the folder that MinerU's own mineru.json has.
        environ: the environment.
        setting: that names the model, for errors.
        mark: pattern of a file that the folder must have.

    Raises EnvironmentFault, with the command that fetches it.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        if any(folder.glob(mark)):
            return folder.resolve()
        raise EnvironmentFault(f"{setting}: {model} has no {mark}; it should be the folder of a model's files")
    if model.startswith((".", "/", "~")) or model.count("/") != 1:
        raise EnvironmentFault(f"{setting}: there is no folder {model}, and it is no id such as organisation/model")
    source = environ.get("MINERU_MODEL_SOURCE", "")
    places = {"huggingface": _hugging_face, "modelscope": _modelscope, "local": _local}
    if source and source not in places:
        raise EnvironmentFault(f"MINERU_MODEL_SOURCE: should be huggingface, modelscope or local (got {source!r})")
    for place in [places[source]] if source else [_hugging_face, _modelscope]:
        for found in place(model, environ):
            if any(found.glob(mark)):
                return found.resolve()
    if source == "local":
        raise EnvironmentFault(
            f"{setting}: MINERU_MODEL_SOURCE is local, and ~/mineru.json names no folder with {mark}"
        )
    command = f"modelscope download --model {model}" if source == "modelscope" else f"hf download {model}"
    raise EnvironmentFault(f"{setting}: {model} is not on this machine; fetch it with: {command}")


def find_weights(name: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the checkpoint file of a detector: a file, or the only ``*.pt`` of what ``find`` finds.

    Raises EnvironmentFault as ``find``, and for a folder with several.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return path.resolve()
    if path.suffix == ".pt":
        raise EnvironmentFault(f"detector.weights: there is no file {name}")
    found = sorted(find(name, environ, "detector.weights", "*.pt").glob("*.pt"))
    if len(found) > 1:
        raise EnvironmentFault(f"detector.weights: {name} has {', '.join(one.name for one in found)}; name one of them")
    return found[0]


def _hugging_face(model: str, environ: Mapping[str, str]) -> Iterator[Path]:
    home = Path(environ.get("HF_HOME") or _cache(environ) / "huggingface")
    hub = Path(environ.get("HF_HUB_CACHE") or home / "hub") / f"models--{model.replace('/', '--')}"
    with contextlib.suppress(OSError):
        yield hub / "snapshots" / (hub / "refs" / "main").read_text(encoding="utf-8").strip()
    yield from sorted(hub.glob("snapshots/*"))


def _modelscope(model: str, environ: Mapping[str, str]) -> Iterator[Path]:
    # ModelScope writes a full stop as three underscores, and knows the organisation in other letters.
    wanted = model.replace(".", "___").lower()
    hub = Path(environ.get("MODELSCOPE_CACHE") or _cache(environ) / "modelscope")
    for root in (hub / "models", hub / "hub" / "models", hub / "hub", hub):
        for folder in sorted(root.glob("*/*")):
            if f"{folder.parent.name}/{folder.name}".lower() in (wanted, model.lower()):
                yield folder


def _local(_: str, environ: Mapping[str, str]) -> Iterator[Path]:
    path = Path(environ.get("MINERU_TOOLS_CONFIG_JSON") or "mineru.json")
    try:
        folders = json.loads((Path.home() / path).read_text(encoding="utf-8"))["models-dir"]
        yield Path(folders["vlm"] if isinstance(folders, dict) else folders)
    except (OSError, ValueError, KeyError, TypeError):
        pass


def _cache(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
