"""Compile every shipped configuration for its card, without one, and say what came of it.

    python scripts/report_kernels.py                    # all cards; exit status 1 on a fault
    python scripts/report_kernels.py --arch gfx1100
    python scripts/report_kernels.py --save --docs      # keep the result, refresh docs/kernels.md

A fault is a spilled register, too much LDS, no matrix instruction for a 16-bit type, or, in the
GEMM's hot loop, a global load narrower than 128 bits. ``--save`` files the rows under the version
of triton in use, so that several versions' results stand side by side.
"""

import argparse
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import triton

from pdfquarry_kernels import configs, roofline
from pdfquarry_kernels.aot import Compiled, compile_launch
from pdfquarry_kernels.launches import Work
from pdfquarry_kernels.search import BYTES, IMAGES, Case, work_of

ROOT = Path(__file__).resolve().parent.parent
SAVED = ROOT / "docs" / "benchmarks" / "compile-report.json"
DOCS = ROOT / "docs" / "kernels.md"
TILE = 128  # the width that aot.Loop gives to the copy engine's loads
PAGE = 5476  # rows of MinerU2.5's layout pass for one page
SHOWN = "3.6.0"  # the version of triton whose rows the docs give in full

Row = dict[str, Any]


def case_of(entry: configs.Entry) -> Case:
    """A problem that falls into an entry's bucket, to compile and model it with."""
    dtype = entry["dtypes"][0]
    up_to = entry["up_to"]
    if entry["op"] == "patch_embed":
        shape = entry["shape"] or {"N": 1280, "K": 1176}
        return Case("patch_embed", dtype, (up_to or 16384, shape["N"], shape["K"]), up_to)
    images = [i for i in (*IMAGES[0], *IMAGES[1]) if i[1] == entry["shape"]["C"]]
    image = next((i for i in images if i[0] * i[2] * i[3] == up_to), images[-1])
    return Case("dilated_block", dtype, image, up_to)


def rows_of(entry: configs.Entry, arch: str) -> Iterable[Row]:
    """One row for each kernel that an entry launches."""
    case = case_of(entry)
    matrix = case.dtype != "fp32"
    for work in work_of(case, entry["config"]):
        compiled = compile_launch(work.launch, arch)
        yield row_of(entry, case, work, compiled, matrix)


def row_of(entry: configs.Entry, case: Case, work: Work, compiled: Compiled, matrix: bool) -> Row:
    """What the compiler made of one kernel, and what the model makes of that."""
    card = roofline.card_of(compiled.arch)
    estimate = roofline.estimate(compiled, work, matrix)
    loads, steps = compiled.hot_loop.loads, roofline.steps_in_loop(compiled, work)
    row: Row = {
        "arch": compiled.arch,
        "op": case.op,
        "kernel": work.launch.fn.__name__,
        "dtype": case.dtype,
        "shape": list(case.shape),
        "use": entry["use"],
        "blocks": blocks_of(work),
        "registers": compiled.registers,
        "spills": compiled.spills,
        "lds": compiled.lds,
        "workgroups": estimate.workgroups,
        "matrix": compiled.matrix_instruction,
        "loads": {str(width): n // steps for width, n in sorted(loads.items())},
        "modelled_us": round(estimate.us, 1),
        "faults": compiled.faults(matrix, wide_loads=work.is_gemm and matrix),
    }
    if case.op == "patch_embed":
        m, n, k = case.shape
        cost = roofline.patch_embed_cost(m, n, k, BYTES[case.dtype])
        row["floor_us"] = round(roofline.floor_us(card, *cost, matrix), 1)
    elif work.launch.fn.__name__ != "tail_kernel":
        images, c, h, w, ksize = case.shape
        cost = roofline.dilated_block_cost(images * h * w, c, ksize, BYTES[case.dtype])
        row["floor_us"] = round(roofline.floor_us(card, *cost, matrix), 1)
    return row


def blocks_of(work: Work) -> str:
    """Block sizes, warps and stages in one word: ``128x128x32 w8 s2``."""
    constants = work.launch.constants
    named = ("BLOCK_M", "BLOCK_P", "TILE_H", "TILE_W", "BLOCK_N", "BLOCK_O", "BLOCK_K", "BLOCK_C")
    sizes = "x".join(str(constants[name]) for name in named if name in constants)
    options = work.launch.options
    return f"{sizes} w{options['num_warps']} s{options['num_stages']}"


def report(arches: Sequence[str]) -> list[Row]:
    """The rows of all entries of the shipped configurations, equal ones once."""
    rows: dict[str, Row] = {}
    for arch in arches:
        document = configs.load(configs.SHIPPED / f"{arch}.json")
        for entry in document["entries"]:
            for row in rows_of(entry, arch):
                rows.setdefault(json.dumps(row, sort_keys=True), row)
    return list(rows.values())


def table(header: Sequence[str], body: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in body]
    return "\n".join(lines)


def compile_table(rows: Iterable[Row]) -> str:
    """The report as a table."""

    def cells(row: Row) -> list[object]:
        widths = row["loads"].items()
        loads = [f"{n} x {int(w) * 8}" if int(w) < TILE else "tiles" for w, n in widths]
        floor = row.get("floor_us")
        ratio = f"{row['modelled_us'] / floor:.2f}" if floor else ""
        return [
            row["arch"],
            row["kernel"].removesuffix("_kernel"),
            row["dtype"],
            " ".join(map(str, row["shape"])),
            row["blocks"],
            row["registers"],
            row["spills"],
            row["lds"],
            row["workgroups"],
            short(row["matrix"]),
            ", ".join(loads),
            row["modelled_us"],
            floor or "",
            ratio,
        ]

    header = ["arch", "kernel", "type", "problem", "blocks", "registers", "spills", "LDS B"]
    header += ["workgroups a unit", "matrix instruction", "loads a step (bits)"]
    return table([*header, "modelled us", "floor us", "ratio"], map(cells, rows))


def short(instruction: str) -> str:
    """A matrix instruction's name without what repeats."""
    return re.sub(r"\.(mma_async|sync|aligned)", "", instruction).replace("wgmma.", "wgmma ")


def versions_table(saved: dict[str, list[Row]]) -> str:
    """How the versions of triton compare."""

    def cells(version: str) -> list[object]:
        rows = saved[version]
        gemm = [r for r in rows if r["arch"] == "gfx1100" and r["kernel"] == "gemm_kernel"]
        half = [r for r in gemm if r["dtype"] != "fp32" and r["shape"][0] >= PAGE]
        return [
            version,
            len({row["arch"] for row in rows}),
            len(rows),
            sum(bool(row["faults"]) for row in rows),
            max((row["registers"] for row in half), default=""),
            f"{max(row['modelled_us'] / row['floor_us'] for row in half):.2f}" if half else "",
        ]

    header = ["triton", "architectures", "kernels", "with a fault"]
    header += [f"gfx1100 GEMM, M >= {PAGE}: registers", "worst ratio to the floor"]
    return table(header, map(cells, sorted(saved)))


def patch_embed_table(bench: dict[str, Any]) -> str:
    """Device times of the patch embedding, and their ratio to torch's linear."""
    names = list(bench["patch_embed"][0]["us"])

    def cells(row: Row) -> list[object]:
        linear = row["us"]["linear"]
        return [
            row["M"],
            *(f"{row['us'][name]:.1f} ({linear / row['us'][name]:.2f})" for name in names),
            row["chosen"],
        ]

    return table(["M", *names, "chosen"], map(cells, bench["patch_embed"]))


def dilated_block_table(rows: list[Row]) -> str:
    """Device times of the dilated block, and their ratio to the native path."""
    names = list(rows[0]["us"])

    def cells(row: Row) -> list[object]:
        native = row["us"]["native"]
        batch, c, h, w, k = row["shape"]
        return [
            f"{c} ch {k}x{k} at {h}x{w}, batch {batch}",
            *(f"{row['us'][name]:.0f} ({native / row['us'][name]:.2f})" for name in names),
            row["chosen"],
        ]

    return table(["block", *names, "chosen"], map(cells, rows))


def model_table(bench: dict[str, Any]) -> str:
    """The whole network, patched and not."""

    def cells(row: Row) -> list[object]:
        graph, eager = row["unpatched_us"] / row["patched_us"], row["unpatched_eager_us"]
        return [
            "x".join(map(str, row["shape"])),
            f"{row['unpatched_us'] / 1e3:.2f}",
            f"{row['patched_us'] / 1e3:.2f} ({graph:.2f})",
            f"{eager / 1e3:.2f}",
            f"{row['patched_eager_us'] / 1e3:.2f} ({eager / row['patched_eager_us']:.2f})",
            row["unpatched_error"],
            row["patched_error"],
        ]

    header = ["input", "unpatched ms", "patched ms", "unpatched, eager ms", "patched, eager ms"]
    header += ["unpatched error", "patched error"]
    return table(header, map(cells, bench["model"]))


def host_table(bench: dict[str, Any]) -> str:
    """What a call costs the calling thread."""
    first = bench["patch_embed"][0]
    return table(
        ["implementation", "host us a call"],
        [[name, f"{us:.0f}"] for name, us in first["host_us"].items()],
    )


def docs_tables() -> dict[str, str]:
    """Every generated table of docs/kernels.md, by the name of its markers."""
    saved = json.loads(SAVED.read_text())
    bench = json.loads((SAVED.parent / "sm_90.json").read_text())
    return {
        "compile": compile_table(saved[SHOWN]),
        "versions": versions_table(saved),
        "patch-embed": patch_embed_table(bench),
        "dilated-block": dilated_block_table(bench["dilated_block"]),
        "dilated-block-fp32": dilated_block_table(bench["dilated_block_fp32"]),
        "model": model_table(bench),
        "host": host_table(bench),
    }


def refreshed(text: str) -> str:
    """docs/kernels.md with its tables made anew."""
    for name, content in docs_tables().items():
        start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, marker, rest = text.partition(start)
        if not marker or end not in rest:
            raise ValueError(f"docs/kernels.md has no markers for {name}")
        text = f"{before}{start}\n{content}\n{end}{rest.partition(end)[2]}"
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", action="append", help="only this one (may be repeated)")
    parser.add_argument("--save", action="store_true", help="keep the rows for the docs")
    parser.add_argument("--docs", action="store_true", help="refresh the tables of docs/kernels.md")
    options = parser.parse_args(arguments)
    shipped = sorted(path.stem for path in configs.SHIPPED.glob("*.json"))
    rows: list[Row] = []
    if options.save or not options.docs:
        rows = report(options.arch or shipped)
        print(compile_table(rows))
    for row in rows:
        for fault in row["faults"]:
            print(f"FAULT {row['arch']} {row['kernel']} {row['blocks']}: {fault}")
    if options.save:
        saved = json.loads(SAVED.read_text()) if SAVED.exists() else {}
        saved[triton.__version__] = rows
        SAVED.write_text(json.dumps(saved, indent=1) + "\n")
    if options.docs:
        DOCS.write_text(refreshed(DOCS.read_text()))
    return 1 if any(row["faults"] for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
