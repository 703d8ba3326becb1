"""A model is found where its tools put it, and what is missing is named with the command that fetches it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pdfquarry import models
from pdfquarry.errors import EnvironmentFault

MODEL = "opendatalab/MinerU2.5-2509-1.2B"


def made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder.resolve()


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    folder = made(tmp_path / "m")
    assert models.find(str(folder), {}) == folder
    with pytest.raises(EnvironmentFault, match=r"no config\.json"):
        models.find(str(tmp_path), {})
    with pytest.raises(EnvironmentFault, match="there is no folder"):
        models.find(str(tmp_path / "absent"), {})


def test_the_caches_of_both_hubs_are_looked_in(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    scope = made(tmp_path / "modelscope/hub/models/OpenDataLab/MinerU2___5-2509-1___2B")
    assert models.find(MODEL, environ) == scope
    hub = tmp_path / "huggingface/hub" / f"models--{MODEL.replace('/', '--')}"
    made(hub / "snapshots/old")
    newest = made(hub / "snapshots/new")
    (hub / "refs").mkdir()
    (hub / "refs/main").write_text("new")
    assert models.find(MODEL, environ) == newest
    assert models.find(MODEL, environ | {"MINERU_MODEL_SOURCE": "modelscope"}) == scope


def test_minerus_own_configuration_is_read_for_local_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    folder = made(tmp_path / "models")
    environ = {"MINERU_MODEL_SOURCE": "local"}
    with pytest.raises(EnvironmentFault, match=r"mineru\.json"):
        models.find(MODEL, environ)
    (tmp_path / "mineru.json").write_text(json.dumps({"models-dir": {"vlm": str(folder)}}))
    assert models.find(MODEL, environ) == folder


@pytest.mark.parametrize(
    ("source", "command"), [("", "hf download"), ("modelscope", "modelscope download --model"), ("x", "should be")]
)
def test_a_missing_model_is_one_line_with_the_command(tmp_path: Path, source: str, command: str) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path), "MINERU_MODEL_SOURCE": source}
    with pytest.raises(EnvironmentFault, match=command) as raised:
        models.find(MODEL, environ)
    assert "\n" not in str(raised.value)


def test_a_detectors_weights_are_a_file_or_the_only_one_of_an_id(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    with pytest.raises(EnvironmentFault, match="there is no file"):
        models.find_weights(str(tmp_path / "absent.pt"), environ)
    with pytest.raises(EnvironmentFault, match=r"detector\.weights: a/b is not on this machine.*hf download a/b"):
        models.find_weights("a/b", environ)
    snapshot = tmp_path / "huggingface/hub/models--a--b/snapshots/1"
    snapshot.mkdir(parents=True)
    (snapshot / "one.pt").touch()
    assert models.find_weights("a/b", environ) == (snapshot / "one.pt").resolve()
    assert models.find_weights(str(snapshot / "one.pt"), environ) == (snapshot / "one.pt").resolve()
    (snapshot / "two.pt").touch()
    with pytest.raises(EnvironmentFault, match=r"one\.pt, two\.pt; name one"):
        models.find_weights("a/b", environ)
