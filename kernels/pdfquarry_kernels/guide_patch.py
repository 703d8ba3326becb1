"""The guide's edits of installed files, as patch files that can be taken back.

For people who must edit site-packages (an image whose entry points are frozen, say); everybody else has the plugin.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

from pdfquarry_kernels import mineru

MODELS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
# In the forward of a patch-embedding class: the five-dimensional patches go through the convolution.
_CONVOLVE = re.compile(r"(?m)^(?P<indent> +)x = self\.proj\(x\)\.view\(L, self\.(?:embed_dim|hidden_size)\)$")
_CLASS = re.compile(r"(?ms)^class Qwen\w+VisionPatchEmbed\b.*?(?=^\S|\Z)")


def write_guide_patch(folder: Path) -> list[Path]:
    """Write a unified diff for each installed package that the guide edits: vLLM and mineru-vl-utils.

    The vLLM edit is for eager ROCm engines; it sends the patch embedding to this package's dispatcher always, so it is
    for GPU engines only. The head of each file says how to apply it and how to take it back.

    Args:
        folder: where to write; made if missing.

    Returns:
        The files written.

    Raises:
        ValueError: nothing installed has a form that is recognised; one line.
    """
    diffs = {
        "vllm": _diff("vllm", [f"model_executor/models/{model}.py" for model in MODELS], edit_model),
        "mineru_vl_utils": _diff("mineru_vl_utils", [mineru.ASYNC_CLIENT_FILE], edit_client),
    }
    if not any(diffs.values()):
        raise ValueError("no installed vllm or mineru_vl_utils file has the form that the guide edits: nothing written")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for package, diff in diffs.items():
        if diff:
            version = importlib.metadata.version(package.replace("_", "-")) if _has(package) else "unknown"
            path = folder / f"{package}-{version}.patch"
            path.write_text(_head(package, path.name) + diff, encoding="utf-8")
            written.append(path)
    return written


def edit_model(text: str) -> str | None:
    """A vLLM model file with the patch embedding sent to our dispatcher, or None if it has no known form."""
    found = _CLASS.search(text)
    if found is None:
        return None
    body, count = _CONVOLVE.subn(
        "\\g<indent>from pdfquarry_kernels.patch_embed import patch_embed\n\n"
        "\\g<indent>x = patch_embed(x, self.proj.weight, self.proj.bias)",
        found[0],
    )
    return text[: found.start()] + body + text[found.end() :] if count == 1 else None


def edit_client(text: str) -> str | None:
    """mineru-vl-utils' async client with the tokenizer fallback, or None if it has no known form."""
    pattern = re.compile(rf"(?m)^( +){re.escape(mineru.UNGUARDED)}$")
    edited, count = pattern.subn(
        r"\1self.tokenizer = vllm_async_llm.tokenizer\n"
        r'\1if hasattr(self.tokenizer, "get_lora_tokenizer"):\n'
        r"\1    self.tokenizer = self.tokenizer.get_lora_tokenizer()",
        text,
    )
    return edited if count == 1 else None


def _has(package: str) -> bool:
    try:
        importlib.metadata.version(package.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _diff(package: str, names: list[str], edit: Callable[[str], str | None]) -> str:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return ""
    root = Path(next(iter(spec.submodule_search_locations)))
    parts: list[str] = []
    for name in names:
        file = root / name
        before = file.read_text(encoding="utf-8") if file.is_file() else ""
        after = edit(before)
        if after is not None:
            parts += difflib.unified_diff(
                before.splitlines(keepends=True),
                after.splitlines(keepends=True),
                f"a/{package}/{name}",
                f"b/{package}/{name}",
            )
    return "".join(parts)


def _head(package: str, name: str) -> str:
    return (
        f"The guide's edit of {package}, by PDF Quarry. In the folder that holds {package}/ (site-packages):\n"
        f"  apply:     patch -p1 < {name}\n"
        f"  take back: patch -R -p1 < {name}\n\n"
    )
