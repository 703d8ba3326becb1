"""The order in which configurations are looked up, and that the shipped ones are sound."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pdfquarry_kernels import configs, dilated_block, dispatch, patch_embed

ARCHES = ["gfx1100", "gfx1101", "gfx1102", "gfx1151", "gfx1200", "gfx1201"]
ARCHES += ["gfx90a", "gfx942", "gfx950", "sm_90"]


def document(arch: str, use: str, **changes: Any) -> dict[str, Any]:
    entry = {"op": "patch_embed", "dtypes": ["bf16"], "shape": {}, "up_to": None, "use": use}
    entry |= {"config": {}} | changes.pop("entry", {})
    return {"schema": 1, "arch": arch, "evidence": "measured", "entries": [entry]} | changes


def write(directory: Path, arch: str, use: str, **changes: Any) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{arch}.json").write_text(json.dumps(document(arch, use, **changes)))


def used(arch: str, m: int = 100, dtype: str = "bf16") -> tuple[str, str]:
    found = configs.lookup(arch, "patch_embed", dtype, {"N": 1280, "K": 1176}, m)
    return found.entry["use"], found.source


def test_override_then_user_then_shipped_then_family_then_built_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    override, shipped = tmp_path / "override", tmp_path / "shipped"
    monkeypatch.setattr(configs, "SHIPPED", shipped)
    assert used("gfx1103") == ("linear", "built-in")
    write(shipped, "gfx1100", "family")
    assert used("gfx1103")[0] == "family"
    write(shipped, "gfx1103", "shipped")
    assert used("gfx1103")[0] == "shipped"
    write(configs.user_directory(), "gfx1103", "user")
    assert used("gfx1103") == ("user", str(configs.user_directory() / "gfx1103.json"))
    write(override, "gfx1103", "override")
    assert used("gfx1103")[0] == "user"
    monkeypatch.setenv(configs.OVERRIDE_VARIABLE, str(override))
    assert used("gfx1103") == ("override", str(override / "gfx1103.json"))


def test_a_file_without_a_fitting_entry_leaves_the_answer_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configs, "SHIPPED", tmp_path)
    write(tmp_path, "gfx1100", "mine", entry={"dtypes": ["fp16"]})
    assert used("gfx1100") == ("linear", "built-in")


def test_the_exact_shape_and_the_smallest_bucket_win() -> None:
    def entry(use: str, up_to: int | None, **shape: int) -> dict[str, Any]:
        return document("x", use, entry={"up_to": up_to, "shape": shape})["entries"][0]

    entries = [entry("any", None), entry("big", None, N=1280), entry("small", 256, N=1280)]

    def best(n: int, m: int) -> str:
        found = configs.best_entry(entries, "patch_embed", "bf16", {"N": n, "K": 1176}, m)
        assert found is not None
        return str(found["use"])

    assert best(1280, 256) == "small"
    assert best(1280, 257) == "big"
    assert best(1152, 1) == "any"


@pytest.mark.parametrize(("key", "value"), [("schema", 2), ("evidence", "hearsay")])
def test_a_damaged_file_is_named(tmp_path: Path, key: str, value: object) -> None:
    write(tmp_path, "gfx1100", "linear", **{key: value})
    with pytest.raises(ValueError, match=rf"gfx1100\.json: {key} is"):
        configs.load(tmp_path / "gfx1100.json")


@pytest.mark.parametrize("arch", ARCHES)
def test_shipped_entries_are_complete_and_say_what_they_rest_on(arch: str) -> None:
    shipped = configs.load(configs.SHIPPED / f"{arch}.json")
    assert shipped["arch"] == arch
    assert shipped["evidence"] == ("measured" if arch == "sm_90" else "compiler model")
    known = {"patch_embed": patch_embed.IMPLEMENTATIONS}
    known["dilated_block"] = dilated_block.IMPLEMENTATIONS
    for entry in shipped["entries"]:
        assert entry["use"] in known[entry["op"]]
        assert ("us" in entry) <= (shipped["evidence"] == "measured")
        assert "kernel" in entry["config"]
        assert entry["config"]["kernel"] != "tma" or arch == "sm_90"


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("m", [1, 5476, 10**7])
def test_every_size_of_the_real_models_is_answered_by_the_shipped_file(arch: str, dtype: str, m: int) -> None:
    shapes = (
        ("patch_embed", {"N": 1280, "K": 1176}),
        ("patch_embed", {"N": 1152, "K": 1536}),
        ("dilated_block", {"C": 96, "KSIZE": 5}),
        ("dilated_block", {"C": 192, "KSIZE": 3}),
    )
    for op, shape in shapes:
        assert configs.lookup(arch, op, dtype, shape, m).source.endswith(f"{arch}.json")


def test_choose_reports_what_runs_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "arch_of", lambda device: "gfx1100")
    dispatch.forget()
    choice = dispatch.choose("patch_embed", (5476, 1280, 1176), torch.bfloat16, "cpu")
    assert choice.implementation == "triton_gemm"
    assert choice.evidence == "compiler model"
    assert choice.source.endswith("gfx1100.json")
    dispatch.forget()


def test_choose_names_a_bad_argument() -> None:
    with pytest.raises(ValueError, match=r"^op: "):
        dispatch.choose("conv4d", (1, 2, 3), torch.float16, "cpu")
    with pytest.raises(ValueError, match=r"^dtype: "):
        dispatch.choose("patch_embed", (1, 2, 3), torch.float64, "cpu")
