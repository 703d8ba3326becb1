"""Write what is generated from the settings' models and from pyproject.toml: configuration, schemas, tables.

Run it after a change in ``workflow/pdfquarry/settings.py`` or ``records.py``; a test fails while they differ.

    python scripts/make_config.py
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "workflow"))

from pdfquarry.records import DocumentRecord, Receipt  # noqa: E402
from pdfquarry.settings import Settings  # noqa: E402

BEGIN, END = "<!-- keys: begin -->", "<!-- keys: end -->"
HEADER = """\
# yaml-language-server: $schema=../workflow/schemas/config.schema.json
# The settings and their defaults; config/README.md says more. Change them here, in a file of your own
# (snakemake --configfile mine.yaml), or on the command line (snakemake --config corpus=/data/pdfs).
"""


def default_config() -> str:
    """Return config/config.yaml: every key with its default, under a comment that says what it is."""
    return HEADER + "".join(_key(name, field, 0) for name, field in Settings.model_fields.items())


def _key(name: str, field: FieldInfo, depth: int) -> str:
    indent = "  " * depth
    comment = textwrap.indent(textwrap.fill(field.description or "", 110 - len(indent)), f"{indent}# ")
    section = _section(field)
    if section:
        inner = "".join(_key(key, value, depth + 1) for key, value in section.model_fields.items())
        return f"\n{comment}\n{indent}{name}:\n{inner}"
    return f"{'' if depth else chr(10)}{comment}\n{indent}{name}: {_yaml(field.default)}\n"


def _section(field: FieldInfo) -> type[BaseModel] | None:
    annotation = field.annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _yaml(value: Any) -> str:
    """Return a default as YAML; JSON is YAML, and plain words need no quotes."""
    if isinstance(value, list):
        return f"[{', '.join(map(_yaml, value))}]"
    return value if isinstance(value, str) and value else json.dumps(value)


def keys_table() -> str:
    """Return the table of config/README.md between its marks."""
    rows = ["| key | default | meaning |", "| --- | --- | --- |"]
    for name, field in Settings.model_fields.items():
        section = _section(field)
        if section:
            rows.append(f"| `{name}` | | {field.description} |")
            for key, inner in section.model_fields.items():
                rows.append(f"| `{name}.{key}` | `{_yaml(inner.default)}` | {inner.description} |")
        else:
            rows.append(f"| `{name}` | `{_yaml(field.default)}` | {field.description} |")
    return "\n".join([BEGIN, *rows, END])


def conda_environment() -> str:
    """Return workflow/envs/quarry.yaml: the dependencies of pyproject.toml, for snakemake --sdm conda."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pip = "".join(f"      - {name}\n" for name in project["dependencies"])
    return f"channels:\n  - conda-forge\ndependencies:\n  - python =3.12\n  - pip\n  - pip:\n{pip}"


def generated() -> dict[Path, str]:
    """Return path -> text of every generated file."""
    readme = ROOT / "config" / "README.md"
    before, rest = readme.read_text(encoding="utf-8").split(BEGIN)
    schemas = {"config": Settings, "receipt": Receipt, "document": DocumentRecord}
    texts = {ROOT / "config" / "config.yaml": default_config(), readme: before + keys_table() + rest.split(END)[1]}
    texts[ROOT / "workflow" / "envs" / "quarry.yaml"] = conda_environment()
    for name, model in schemas.items():
        schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | model.model_json_schema()
        texts[ROOT / "workflow" / "schemas" / f"{name}.schema.json"] = json.dumps(schema, indent=2) + "\n"
    return texts


def main() -> None:
    """Write the files that differ and name them."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for path, text in generated().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
