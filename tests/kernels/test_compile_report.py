"""What the compiler makes of the shipped configurations, for cards that are not here."""

from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import triton

from pdfquarry_kernels import aot, configs, dispatch
from pdfquarry_kernels import dilated_block as db
from pdfquarry_kernels.launches import patch_embed_work
from pdfquarry_kernels.problems import random_block
from pdfquarry_kernels.roofline import CARDS, estimate, floor_us, patch_embed_cost, steps_in_loop

GUIDE = {"kernel": "plain", "BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 32, "GROUP_M": 8}
GUIDE |= {"num_warps": 8, "num_stages": 2}
Script = Callable[[str], ModuleType]


def compiled(config: dict[str, Any], arch: str, k: int = 1176, dtype: str = "bf16") -> aot.Compiled:
    (work,) = patch_embed_work(config, dtype, 5476, 1280, k)
    return aot.compile_launch(work.launch, arch)


def faults(script: Script, arch: str) -> list[str]:
    rows = script("report_kernels").report([arch])
    assert rows
    return [f"{r['kernel']} {r['dtype']} {r['blocks']}: {f}" for r in rows for f in r["faults"]]


@pytest.mark.parametrize("arch", ["gfx1100", "sm_90"])
def test_every_shipped_configuration_is_sound(script: Script, arch: str) -> None:
    assert faults(script, arch) == []


@pytest.mark.slow
@pytest.mark.parametrize("arch", sorted(set(CARDS) - {"gfx1100", "sm_90"}))
def test_every_shipped_configuration_is_sound_on_the_other_cards(script: Script, arch: str) -> None:
    assert faults(script, arch) == []


@pytest.mark.parametrize("m", [5476, 16384])
def test_gfx1100_gemm_is_wide_spill_free_and_near_the_compute_floor(m: int) -> None:
    document = configs.load(configs.SHIPPED / "gfx1100.json")
    shape = {"N": 1280, "K": 1176}
    entry = configs.best_entry(document["entries"], "patch_embed", "bf16", shape, m)
    assert entry is not None and entry["use"] == "triton_gemm"
    (work,) = patch_embed_work(entry["config"], "bf16", m, 1280, 1176)
    kernel = aot.compile_launch(work.launch, "gfx1100")
    assert kernel.spills == 0
    assert kernel.matrix_instruction == "v_wmma_f32_16x16x16_bf16"
    assert dict(kernel.hot_loop.loads) == {16: 4 * steps_in_loop(kernel, work)}
    floor = floor_us(CARDS["gfx1100"], *patch_embed_cost(m, 1280, 1176, 2), matrix=True)
    assert estimate(kernel, work).us <= 1.15 * floor


def test_a_narrow_load_is_a_fault() -> None:
    """With an odd row length no load can be 128 bits wide."""
    kernel = compiled(GUIDE, "gfx1100", k=1177)
    assert kernel.narrow_loads > 0
    assert any("128 bits" in fault for fault in kernel.faults(matrix=True, wide_loads=True))


def test_a_missing_matrix_instruction_is_a_fault() -> None:
    small = GUIDE | {"BLOCK_M": 32, "BLOCK_N": 32, "num_warps": 4, "num_stages": 1}
    kernel = compiled(small, "gfx1100", dtype="fp32")
    assert kernel.matrix_instruction == ""
    assert kernel.faults(matrix=False, wide_loads=False) == []
    assert kernel.faults(matrix=True, wide_loads=False) == ["no matrix instruction"]


def test_spills_and_lds_over_the_limit_are_faults() -> None:
    greedy = GUIDE | {"BLOCK_M": 256, "BLOCK_N": 256, "BLOCK_K": 64, "num_stages": 3}
    found = " ".join(compiled(greedy, "gfx1100").faults(matrix=True, wide_loads=False))
    assert "spills" in found and "of LDS" in found


def test_the_hot_loop_is_found_behind_other_loops() -> None:
    text = """
.LBB0_1:
    v_add_u32 v0, v0, v1
    s_cbranch_scc1 .LBB0_1
    global_load_b32 v1, v[0:1], off
.LBB0_2:
    buffer_load_b128 v[0:3], v4, s[0:3], 0 offen
    v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], v[0:7]
    s_cbranch_scc0 .LBB0_4
    global_load_u16 v1, v[0:1], off
    s_branch .LBB0_2
.LBB0_4:
    s_endpgm
"""
    loop = aot._hot_loop(text, amd=True)
    assert (loop.matrix, loop.valu, dict(loop.loads)) == (1, 0, {16: 1, 2: 1})


def test_an_unknown_architecture_is_named() -> None:
    with pytest.raises(ValueError, match=r"^arch: .*'RX 7900 XTX'"):
        aot.target_of("RX 7900 XTX")


@pytest.fixture
def pretended_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """A driver for a card that is not here: launches compile and go nowhere; yields what did."""
    target = aot.target_of("gfx1100")
    driver = SimpleNamespace(
        get_current_target=lambda: target,
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
        get_active_torch_device=lambda: torch.device("cpu"),
        launcher_cls=lambda *_: lambda *_, **__: None,
        map_python_to_cpp_type=str,
        utils=SimpleNamespace(
            load_binary=lambda *_: (0, 0, 0, 0, 1024),
            get_device_properties=lambda _: {"max_shared_mem": 2**20, "warpSize": 32},
        ),
    )
    seen: list[Any] = []
    # Not set_active(): its counterpart looks for a real card.
    monkeypatch.setattr(triton.runtime.driver, "_active", driver)
    before = triton.knobs.runtime.jit_post_compile_hook
    triton.knobs.runtime.jit_post_compile_hook = lambda **event: seen.append(event["key"])
    yield seen
    triton.knobs.runtime.jit_post_compile_hook = before


@pytest.mark.parametrize("kernel", ["fused", "two_step"])
def test_twenty_page_shapes_compile_once(
    kernel: str,
    script: Script,
    pretended_gpu: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = {"kernel": kernel, "TILE_H": 8, "TILE_W": 8, "BLOCK_O": 16, "num_warps": 8}
    config |= {"num_stages": 1, "BLOCK_N": 32, "BLOCK_C": 32, "tail": db.TAIL}
    choice = dispatch.Choice("triton", config, "this test", "none")
    monkeypatch.setattr(db, "choose", lambda *_: choice)
    monkeypatch.setattr(db.guards, "require_gpu", lambda *_: None)
    weights = random_block(96, 5, (1, 2, 3), torch.float16, "cpu")
    shapes = script("bench_kernels").page_shapes()
    assert len(set(shapes)) == 20
    for n, h, w in shapes:
        x = torch.zeros(n, 96, h, w, dtype=torch.float16).to(memory_format=torch.channels_last)
        db.dilated_block(x, weights)
    assert len(pretended_gpu) == {"fused": 1, "two_step": 2}[kernel]
