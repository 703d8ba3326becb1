"""Known-good settings are data with a source, and the user's own win."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdfquarry.arch import FOLDER, Known, job_variables, load, shown
from pdfquarry.errors import ConfigurationError

SHIPPED = sorted(path.stem for path in FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("arch", SHIPPED)
def test_every_shipped_file_loads_and_every_value_has_a_source(arch: str) -> None:
    known = load(arch)
    assert known.cards != "unknown"
    for one in [*known.environment.values(), *known.engine.values()]:
        assert len(one.source) > 10


def test_the_cards_of_the_guide_and_of_the_issues_are_shipped() -> None:
    assert set(SHIPPED) >= {
        "gfx1100",
        "gfx1101",
        "gfx1102",
        "gfx1151",
        "gfx1200",
        "gfx1201",
        "gfx90a",
        "gfx942",
        "gfx950",
    }


def test_rdna_cards_get_the_guides_switch_and_no_aiter() -> None:
    for arch in ("gfx1100", "gfx1201", "gfx1151"):
        known = load(arch)
        assert known.environment["TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL"].value == "1"
        assert known.environment["VLLM_ROCM_USE_AITER"].value == "0"
    assert load("gfx1151").engine["mm_encoder_attn_backend"].value == "TRITON_ATTN"
    assert not load("gfx942").environment


def test_a_card_without_a_file_takes_its_familys_and_a_stranger_nothing() -> None:
    assert load("gfx1103") == load("gfx1100") and load("gfx941") == load("gfx942")
    assert load("gfx803").cards == "unknown" and not load("sm_75").environment


def test_what_the_user_has_set_wins_and_masks_leave_one_device() -> None:
    environ = {"MIOPEN_FIND_MODE": "NORMAL", "ROCR_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"}
    variables = job_variables("gfx1100", {"VLLM_ROCM_USE_AITER": "1"}, environ, device=2)
    assert "MIOPEN_FIND_MODE" not in variables and variables["VLLM_ROCM_USE_AITER"] == "1"
    assert variables["HIP_VISIBLE_DEVICES"] == "2"
    assert variables["CUDA_VISIBLE_DEVICES"] is None and variables["ROCR_VISIBLE_DEVICES"] is None
    assert job_variables("sm_90", {}, environ, device=1)["CUDA_VISIBLE_DEVICES"] == "1"
    scheduled = job_variables("gfx1100", {}, environ)
    assert not {"HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"} & set(scheduled)


@pytest.mark.parametrize(
    "text", ["cards: [", "cards: x\nenviroment: {}", "cards: x\nenvironment: {A: {value: 1}}", "7"]
)
def test_a_file_that_can_not_be_used_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "gfx1100.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=r"gfx1100\.yaml: can't be used"):
        load("gfx1100", tmp_path)


def test_a_value_without_a_source_is_refused() -> None:
    with pytest.raises(ValueError):
        Known(value="1", source="")


def test_a_key_is_not_written_down() -> None:
    told = shown({"MINERU_VL_API_KEY": "s3cret", "HF_TOKEN": "t", "HIP_VISIBLE_DEVICES": "0", "ROCR": None})
    assert told == {"MINERU_VL_API_KEY": "***", "HF_TOKEN": "***", "HIP_VISIBLE_DEVICES": "0", "ROCR": None}
