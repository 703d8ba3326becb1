"""What an engine lacks is said before a GPU is taken, and it is started as the card and the user want it."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import pytest

from pdfquarry.engines import EngineJob, Machine
from pdfquarry.errors import EnvironmentFault
from pdfquarry.gpus import Gpu
from pdfquarry.leases import Device
from pdfquarry.results import Results
from pdfquarry.settings import load

VERSIONS = {"torch": "2.12.0", "vllm": "0.28.0", "mineru-vl-utils": "2.0.7"}


def machine(**versions: str) -> Machine:
    return Machine(
        "gfx1100", [Gpu(0, "gfx1100", "RX", 24000, None, "test")], "/opt/venv/bin/python", VERSIONS | versions
    )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return tmp_path / "model"


def job(model: Path, kind: str = "vllm", on: Machine | None = None, **config: Any) -> EngineJob:
    vlm = {"model": str(model), "servers": ["http://node7:8000"]} | config.pop("vlm", {})
    settings = load({"engine": kind, "vlm": vlm, **config})
    return EngineJob(kind, settings, on or machine(), model.parent / "logs" / "e.log")


@pytest.mark.parametrize(
    ("kind", "versions", "says"),
    [
        ("vllm", {"vllm": None}, "vLLM, which is not installed"),
        ("vllm", {"mineru-vl-utils": None}, "mineru-vl-utils is not installed"),
        ("http", {"mineru-vl-utils": None}, "mineru-vl-utils is not installed"),
        ("vllm", {"mineru-vl-utils": "1.0.5"}, "too old"),
    ],
)
def test_a_package_that_is_missing_or_too_old_is_named_with_its_interpreter(
    model: Path, kind: str, versions: dict[str, Any], says: str
) -> None:
    on = machine()
    on.versions = {name: found for name, found in (VERSIONS | versions).items() if found}
    with pytest.raises(EnvironmentFault, match=says) as raised:
        job(model, kind, on)
    assert "/opt/venv/bin/python" in str(raised.value) and "\n" not in str(raised.value)


def test_a_missing_model_is_named_and_no_gpu_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDFQUARRY_LOCKS", str(tmp_path / "locks"))
    with pytest.raises(EnvironmentFault, match=r"vlm\.model"):
        job(tmp_path / "absent")
    assert not (tmp_path / "locks").exists()


def test_an_environment_that_is_damaged_is_one_line_with_the_remedy(tmp_path: Path) -> None:
    results = Results(tmp_path)
    with pytest.raises(EnvironmentFault, match="delete it"):
        Machine.read(results)
    (tmp_path / "environment.json").write_text('{"arch": "cpu"}')
    with pytest.raises(EnvironmentFault, match="delete it"):
        Machine.read(results)


def test_the_card_is_masked_and_its_settings_are_set(model: Path) -> None:
    variables = job(model)._variables(Device("2", 2))
    assert variables["HIP_VISIBLE_DEVICES"] == "2"
    assert variables["CUDA_VISIBLE_DEVICES"] is None and variables["ROCR_VISIBLE_DEVICES"] is None
    assert variables["VLLM_ROCM_USE_AITER"] == "0" and variables["HF_HUB_OFFLINE"] == "1"
    scheduled = job(model)._variables(Device("slurm-1-0", None))
    assert not any(name.endswith("VISIBLE_DEVICES") for name in scheduled), "the scheduler's masks stay"


def test_the_users_own_variable_wins(model: Path) -> None:
    own = {"VLLM_ROCM_USE_AITER": "1", "HF_HUB_OFFLINE": "0"}
    variables = job(model, environment={"variables": own})._variables(Device("0", 0))
    assert own.items() <= variables.items()


def test_the_plugin_is_found_in_a_python_that_has_no_pdf_quarry(model: Path) -> None:
    path = str(job(model)._variables(Device("0", 0))["PYTHONPATH"])
    site = next(Path(part) for part in path.split(":") if part.endswith("site"))
    (found,) = importlib.metadata.distributions(path=[str(site)])
    assert [point.group for point in found.entry_points] == ["vllm.general_plugins"]
    installed = job(model, on=machine(**{"pdf-quarry": "0.1.0"}))._variables(Device("0", 0))
    assert str(site) not in str(installed["PYTHONPATH"])


def test_an_engine_is_reused_only_for_the_same_settings(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = job(model).digest()
    assert job(model, vlm={"linger_seconds": 5, "pages_in_flight": 3}).digest() == first
    assert job(model, vlm={"max_tokens": 100}).digest() != first
    assert job(model, vlm={"arguments": {"enforce_eager": True}}).digest() != first
    assert job(model, environment={"variables": {"X": "1"}}).digest() != first
    monkeypatch.setenv("PDFQUARRY_PATCHES", "0")
    assert job(model).digest() != first


def test_the_arguments_of_the_card_and_of_the_user_are_told_apart(model: Path) -> None:
    load_it = job(model, vlm={"arguments": {"enforce_eager": True}}).load
    assert load_it["known"] == {"skip_mm_profiling": True} and load_it["arguments"] == {"enforce_eager": True}
    json.dumps(load_it)


def test_a_servers_model_is_a_name_and_takes_no_card(model: Path) -> None:
    one = job(model, "http", vlm={"model": "tiny"})
    assert one.load["model"] == "tiny"
    with one._take() as lease:
        assert lease.device == Device("http", None)
    place = one._place
    one.release()
    assert place is not None and not place.exists()
