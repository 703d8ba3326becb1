"""Compiles kernels for cards that are not here, and reads what the compiler made of them.

Needs triton only: no GPU, no ROCm, no torch. Do not set TRITON_INTERPRET while importing kernels.
"""

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

# Shared memory that one workgroup may use, in bytes (AMD's ISA guides; CUDA programming guide).
LDS_LIMIT = {"gfx950": 160 * 1024, "sm_90": 227 * 1024}
LDS_LIMIT_ELSE = 64 * 1024

_MATRIX = re.compile(r"\b(v_wmma\w+|v_mfma\w+|v_smfmac\w+|wgmma\.mma_async\S+|mma\.sync\S+)")
_AMD_LOAD = re.compile(r"\b(?:global|buffer|flat)_load_(\w+)")
_AMD_WIDTH = {"b128": 16, "dwordx4": 16, "b96": 12, "dwordx3": 12, "b64": 8, "dwordx2": 8}
_AMD_WIDTH |= {"b32": 4, "dword": 4, "u16": 2, "ushort": 2, "d16_b16": 2, "d16_hi_b16": 2}
_AMD_WIDTH |= {"short_d16": 2, "short_d16_hi": 2, "u8": 1, "ubyte": 1}


@dataclass(frozen=True)
class Launch:
    """One kernel as it would be launched.

    Attributes:
        fn: the ``@triton.jit`` function.
        pointers: type of each pointer argument: ``bf16``, ``fp16``, ``fp32``; a descriptor is
            written ``bf16[128,64]`` with its block shape.
        scalars: value of each run-time integer: decides what the JIT would specialise on.
        constants: value of each compile-time argument.
        options: ``num_warps``, ``num_stages`` and the like.
    """

    fn: Any
    pointers: Mapping[str, str]
    scalars: Mapping[str, int]
    constants: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)


def target_of(arch: str) -> GPUTarget:
    """The compilation target of ``gfx1100``, ``sm_90`` and so on.

    Raises:
        ValueError: not an architecture's name.
    """
    if match := re.fullmatch(r"sm_(\d+)", arch):
        return GPUTarget("cuda", int(match[1]), 32)
    if re.fullmatch(r"gfx\d+[0-9a-f]*", arch):
        return GPUTarget("hip", arch, 64 if arch.startswith("gfx9") else 32)
    raise ValueError(f"arch: 'gfx...' or 'sm_...' is needed, got {arch!r}")


def compile_launch(launch: Launch, arch: str) -> "Compiled":
    """Compile as the JIT would: what it specialises on is set from the values in ``launch``.

    Pointers count as aligned to 16 bytes and, on AMD, as smaller than 2 GiB (which is what turns
    on buffer loads); integers that are 1 become constants and multiples of 16 are marked, unless
    the kernel lists them in ``do_not_specialize``.

    Raises:
        ValueError: an argument of the kernel is missing from the launch.
    """
    target = target_of(arch)
    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for index, parameter in enumerate(launch.fn.params):
        name = parameter.name
        if name in launch.constants:
            signature[name], constants[(index,)] = "constexpr", launch.constants[name]
        elif name in launch.pointers:
            kind = launch.pointers[name]
            if "[" in kind:
                signature[name] = f"tensordesc<{kind}>"
                continue
            signature[name] = f"*{kind}"
            attributes[(index,)] = [["tt.divisibility", 16]]
            if target.backend == "hip":
                attributes[(index,)].append(["tt.pointer_range", 32])
        elif name in launch.scalars:
            value, fixed = launch.scalars[name], not parameter.do_not_specialize
            signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if fixed and value == 1:
                signature[name], constants[(index,)] = "constexpr", 1
            elif fixed and value % 16 == 0:
                attributes[(index,)] = [["tt.divisibility", 16]]
        else:
            raise ValueError(f"launch: {launch.fn.__name__} also takes {name}")
    source = ASTSource(launch.fn, signature, constants, attributes)
    kernel = triton.compile(source, target=target, options=dict(launch.options))
    return Compiled(arch, launch, kernel.metadata.shared, dict(kernel.asm))


class Loop(NamedTuple):
    """The instructions of the innermost loop that multiplies matrices."""

    matrix: int
    valu: int
    loads: Counter[int]  # width in bytes -> how many global loads


@dataclass
class Compiled:
    """A compiled kernel and what can be read off it."""

    arch: str
    launch: Launch
    lds: int
    asm: dict[str, Any]

    @property
    def amd(self) -> bool:
        return "amdgcn" in self.asm

    @cached_property
    def text(self) -> str:
        return str(self.asm["amdgcn" if self.amd else "ptx"])

    def _metadata(self, key: str) -> int:
        match = re.search(rf"\.{key}:\s+(\d+)", self.text)
        return int(match[1]) if match else 0

    @cached_property
    def _usage(self) -> dict[str, int]:
        """Registers and local memory of an NVIDIA kernel, from the cuobjdump in triton's wheel."""
        tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
            cubin.write(self.asm["cubin"])
            cubin.flush()
            command = [str(tool), "-res-usage", cubin.name]
            text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return {name: int(value) for name, value in re.findall(r"(REG|LOCAL|STACK):(\d+)", text)}

    @property
    def registers(self) -> int:
        """Vector registers a lane."""
        return self._metadata("vgpr_count") if self.amd else self._usage["REG"]

    @property
    def spills(self) -> int:
        """Spilled vector registers (AMD), bytes of local memory a thread (NVIDIA)."""
        if self.amd:
            return self._metadata("vgpr_spill_count") + self._metadata("sgpr_spill_count")
        return self._usage["LOCAL"] + self._usage["STACK"]

    @property
    def lds_limit(self) -> int:
        return LDS_LIMIT.get(self.arch, LDS_LIMIT_ELSE)

    @property
    def waves_per_simd(self) -> int:
        """By registers alone: LLVM's own figure on AMD; 64K registers an SM on NVIDIA."""
        if self.amd:
            match = re.search(r"; Occupancy: (\d+)", self.text)
            return int(match[1]) if match else 1
        per_warp = -(-self.registers // 8) * 8 * 32
        return max(1, 65536 // per_warp // 4)

    @property
    def matrix_instruction(self) -> str:
        """The matrix instruction in use, or "" where there is none."""
        match = _MATRIX.search(self.text)
        return match[1].rstrip(";") if match else ""

    @cached_property
    def hot_loop(self) -> Loop:
        """The first loop with matrix instructions; the first loop at all where there are none."""
        return _hot_loop(self.text, self.amd)

    @property
    def narrow_loads(self) -> int:
        """Global loads of the hot loop that are narrower than 128 bits."""
        return sum(count for width, count in self.hot_loop.loads.items() if width < 16)

    def faults(self, matrix: bool, wide_loads: bool) -> list[str]:
        """What a shipped configuration must not have, as words; empty if it is sound.

        Args:
            matrix: whether matrix instructions are wanted (16-bit types).
            wide_loads: whether every global load of the hot loop must be 128 bits wide.
        """
        found = []
        if self.spills:
            found.append(f"{self.spills} spills")
        if self.lds > self.lds_limit:
            found.append(f"{self.lds} B of LDS, {self.lds_limit} allowed")
        if matrix and not self.hot_loop.matrix:
            found.append("no matrix instruction")
        if wide_loads and self.narrow_loads:
            found.append(f"{self.narrow_loads} loads under 128 bits in the hot loop")
        return found


class _Block(NamedTuple):
    label: str
    lines: list[str]
    targets: list[str]
    falls_through: bool


def _blocks(text: str, amd: bool) -> list[_Block]:
    label_at = re.compile(r"^([.$\w]+):")
    jump = re.compile(r"\bs_c?branch\w*\s+(\.\w+)" if amd else r"\bbra(?:\.uni)?\s+([$\w]+)")
    always = re.compile(r"^\s*s_branch\b" if amd else r"^\s*bra(?:\.uni)?\b")
    leaves = re.compile(r"^\s*(?:s_endpgm|s_setpc\w+)" if amd else r"^\s*(?:ret|exit)\b")
    blocks: list[_Block] = []
    label, lines, targets = "entry", [], []  # type: str, list[str], list[str]

    def close(next_label: str, falls_through: bool) -> None:
        nonlocal label, lines, targets
        blocks.append(_Block(label, lines, targets, falls_through))
        label, lines, targets = next_label, [], []

    for line in text.splitlines():
        if match := label_at.match(line):
            close(match[1], True)
        else:
            lines.append(line)
            if match := jump.search(line):
                targets.append(match[1])
                close("", not always.match(line))
            elif leaves.match(line):
                close("", False)
    close("", False)
    return blocks


def _hot_loop(text: str, amd: bool) -> Loop:
    blocks = _blocks(text, amd)
    at = {block.label: index for index, block in enumerate(blocks) if block.label}
    following = [
        [at[t] for t in block.targets if t in at]
        + ([index + 1] if block.falls_through and index + 1 < len(blocks) else [])
        for index, block in enumerate(blocks)
    ]
    before: list[list[int]] = [[] for _ in blocks]
    for index, targets in enumerate(following):
        for target in targets:
            before[target].append(index)
    live = _reach(0, following)
    loops = []
    for head in sorted(live):
        for tail in live.intersection(before[head]):
            body = _natural_loop(head, tail, before, following)
            if body:
                loops.append(_count([line for i in sorted(body) for line in blocks[i].lines], amd))
    with_matrix = [loop for loop in loops if loop.matrix]
    lines = text.splitlines()
    products = [index for index, line in enumerate(lines) if _MATRIX.search(line)]
    if products and not with_matrix:  # unrolled to the end: what was the loop is a straight line
        return _count(lines[products[0] : products[-1] + 1], amd)
    return next(iter(with_matrix or loops), Loop(0, 0, Counter()))


def _reach(start: int, following: list[list[int]], avoiding: int | None = None) -> set[int]:
    reached, stack = {start}, [start]
    while stack:
        for target in following[stack.pop()]:
            if target != avoiding and target not in reached:
                reached.add(target)
                stack.append(target)
    return reached


def _natural_loop(head: int, tail: int, before: list[list[int]], following: list[list[int]]) -> set[int]:
    """The body of the loop that the edge tail -> head closes; empty if the edge closes none."""
    # What the entry reaches without passing head is not dominated by it.
    if head and tail in _reach(0, following, avoiding=head):
        return set()
    body, stack = {head, tail}, [tail] if tail != head else []
    while stack:
        for source in before[stack.pop()]:
            if source not in body:
                body.add(source)
                stack.append(source)
    return body


def _count(lines: list[str], amd: bool) -> Loop:
    loads: Counter[int] = Counter()
    matrix = valu = 0
    for line in lines:
        code = line.split(";")[0] if amd else line
        if _MATRIX.search(code):
            matrix += 1
        elif amd and re.match(r"\s*v_", code):
            valu += 1
        if amd and (match := _AMD_LOAD.search(code)):
            loads[_AMD_WIDTH.get(match[1], 0)] += 1
        elif not amd and "cp.async.bulk.tensor" in code:
            loads[128] += 1  # the copy engine moves whole rows of a tile
        elif not amd and (match := re.search(r"cp\.async\.c[ag]\S+.*,\s*(0x\w+|\d+)\s*,", code)):
            loads[int(match[1], 0)] += 1
        elif not amd and (match := re.search(r"ld\.global(?:\.\w+)*?(?:\.v(\d))?\.b(\d+)", code)):
            loads[int(match[1] or 1) * int(match[2]) // 8] += 1
    return Loop(matrix, valu, loads)
