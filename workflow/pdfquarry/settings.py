"""The settings: their types, defaults, limits, and what depends on each.

``config/config.yaml``, ``workflow/schemas/config.schema.json`` and the table in ``config/README.md`` are generated
from these models by ``scripts/make_config.py``.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from pdfquarry import OUTPUT_VERSION
from pdfquarry.errors import ConfigurationError

# What PP-OCRv6 reads, by PaddleOCR's names. The tiny model has all but Japanese, for which the small one is taken.
OCR_LANGUAGES = frozenset(
    """af az bs ca ch chinese_cht cs cy da de en es et eu fi fr ga gl hr hu id is it japan ku la lb lt lv mi ms mt nl no
    oc pl pt qu rm ro rs_latin sk sl sq sv sw tl tr uz vi""".split()  # noqa: SIM905  a list is read in one look
)
# The model that this project is for.
MODEL = "opendatalab/MinerU2.5-2509-1.2B"
Format = Literal["markdown", "content_list", "middle_json", "jsonl"]


def _one_or_many(value: Any) -> Any:
    """``--config corpus=/data`` and ``--config formats=markdown,jsonl`` arrive as one string."""
    if isinstance(value, (str, Path)):
        return [part.strip() for part in str(value).split(",") if part.strip()]
    return value


def _one_path_or_many(value: Any) -> Any:
    """A path may hold a comma, so one string is one path."""
    return [str(value)] if isinstance(value, (str, Path)) else value


def _gpus(value: Any) -> Any:
    """``--config gpus=0,2`` arrives as one string, ``gpus=0`` as a number."""
    if value == "auto":
        return value
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]
    if not parts or not all(re.fullmatch(r"\s*[0-9]+\s*", str(part)) for part in parts):
        raise ValueError("should be auto or indices such as [0, 2]")
    return sorted({int(part) for part in parts})


def _typed(value: Any) -> Any:
    """On the command line every inner value is a text: ``vlm='{arguments: {enforce_eager: true}}'``."""
    if not isinstance(value, dict):
        return value
    return {key: yaml.safe_load(one) if isinstance(one, str) else one for key, one in value.items()}


class Section(BaseModel):
    """Base of all settings: unknown keys are errors, nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)


class Limits(Section):
    """What one document may cost. A changed limit tries again what an old limit stopped, and nothing else."""

    page_seconds: float = Field(
        default=120,
        gt=0,
        description="Seconds without progress after which a page is given up and its reader is stopped.",
    )
    memory_mb: int = Field(
        default=4096,
        ge=256,
        description="Memory in MiB that one document may take in its reader, on top of the loaded engine.",
    )
    page_pixels: int = Field(
        default=25_000_000,
        ge=100_000,
        description="Pixels of one rendered page; larger pages are rendered at a lower resolution.",
    )


class EnvironmentSettings(Section):
    """What the work on GPUs runs in."""

    python: str = Field(
        default="",
        description="The Python for work on GPUs, e.g. that of a ROCm container; empty takes the one of Snakemake.",
    )
    create: Literal["", "rocm"] = Field(
        default="",
        description="rocm builds a Python for work on AMD GPUs once, with uv, from pinned wheels, and takes it: "
        "docs/environment.md. Needs 20 GB.",
    )
    variables: dict[str, str] = Field(
        default={},
        description="Environment variables for work on GPUs; they win over those of config/arch/<arch>.yaml.",
    )

    @model_validator(mode="after")
    def _one_python(self) -> EnvironmentSettings:
        if self.python and self.create:
            raise ValueError("python names one and create builds one, so set only one of the two")
        return self


class VlmSettings(Section):
    """The vision-language model that reads pages with the engines vllm, http and transformers."""

    model: str = Field(
        default="",
        description="A folder with the model, or its id on Hugging Face or ModelScope (MINERU_MODEL_SOURCE says "
        f"which); it is looked up, and never fetched. Empty takes {MODEL}. With http, its name on the servers; empty "
        "takes the only one.",
    )
    servers: Annotated[list[str], BeforeValidator(_one_or_many)] = Field(
        default=[],
        description="With http, the URLs of OpenAI-compatible servers, e.g. http://node7:8000. A key is taken from the "
        "variable MINERU_VL_API_KEY.",
    )
    arguments: Annotated[dict[str, Any], BeforeValidator(_typed)] = Field(
        default={},
        description="Arguments of vLLM's engine, e.g. {gpu_memory_utilization: 0.8}; they win over those of "
        "config/arch/<arch>.yaml.",
    )
    max_tokens: int = Field(
        default=8192,
        ge=64,
        description="Tokens of one answer at most; one that needs more is marked and read otherwise.",
    )
    dpi: int = Field(default=200, ge=72, le=600, description="Resolution of the pages that the model sees.")
    pages_in_flight: int = Field(
        default=64,
        ge=1,
        description="Pages that are rendered or in the engine at a time, of as many documents as it takes.",
    )
    stall_seconds: float = Field(
        default=300,
        gt=0,
        description="Seconds without any sign of work after which an engine is ended and started again; with http, "
        "seconds without any server.",
    )
    linger_seconds: float = Field(
        default=60,
        ge=0,
        description="Seconds that an engine without work waits for the next job; with 0 it ends with its job.",
    )


class DetectorSettings(Section):
    """The detector of layout: doclayout-yolo."""

    weights: str = Field(
        default="",
        description="The checkpoint of DocLayout-YOLO: a file, or an id on Hugging Face or ModelScope, looked up like "
        "vlm.model. It is loaded as a pickle: take it from people you trust.",
    )


class Settings(Section):
    """All settings of a run."""

    corpus: Annotated[list[str], BeforeValidator(_one_path_or_many)] = Field(
        default=["tests/resources/corpus"],
        min_length=1,
        description="Where the PDFs are: folders (searched with their sub-folders for *.pdf), PDF files, globs, or a "
        "text file (.txt) with one path a line. One or a list.",
    )
    results: str = Field(default="results", min_length=1, description="The folder for all that the workflow writes.")
    arch: str = Field(
        default="auto",
        pattern=r"^(auto|cpu|gfx[0-9a-f]{3,4}|sm_[0-9]{2,3})$",
        description="The GPU architecture that you expect, e.g. gfx1100 or sm_90: another card is an error. auto takes "
        "what is there; cpu looks at no GPU.",
    )
    environment: EnvironmentSettings = Field(
        default_factory=EnvironmentSettings, description="What the work on GPUs runs in."
    )
    gpus: Annotated[Literal["auto"] | list[int], BeforeValidator(_gpus)] = Field(
        default="auto",
        description="The GPUs to work on, by their indices, e.g. [0, 2]; auto takes all of the architecture. A job "
        "takes one that is free; a scheduler's own assignment is kept.",
    )
    engine: Literal["embedded", "vllm", "http", "transformers"] = Field(
        default="embedded",
        description="What reads the pages. embedded: DocVortex for text layers, PP-OCRv6 for scans, on the CPU. vllm: "
        "MinerU2.5 on a GPU. http: the same on servers. transformers: the same without vLLM, for debugging.",
    )
    layout: Literal["auto", "docvortex", "vlm", "doclayout-yolo"] = Field(
        default="auto",
        description="What finds the regions of a page. docvortex is the embedded engine's own, vlm the model's; auto "
        "takes that. doclayout-yolo: a detector, in a job of its own before the model.",
    )
    vlm: VlmSettings = Field(default_factory=VlmSettings, description="The model of vllm, http and transformers.")
    detector: DetectorSettings = Field(
        default_factory=DetectorSettings, description="The detector of layout: doclayout-yolo."
    )
    languages: Annotated[list[str], BeforeValidator(_one_or_many)] = Field(
        default=["en", "ch"],
        min_length=1,
        description="Languages of your scanned pages, as PaddleOCR names them (en, ch, chinese_cht, japan, de ...). "
        "One model reads all but japan, which takes a larger and slower one.",
    )
    pages_per_shard: int = Field(
        default=2000, ge=1, description="Pages in one shard, the unit of a job. Planned shards keep their size."
    )
    limits: Limits = Field(default_factory=Limits, description="What one document may cost.")
    formats: Annotated[list[Format], BeforeValidator(_one_or_many)] = Field(
        default=["markdown", "content_list"],
        description="What is published for each document (markdown with its images, content_list, middle_json) and "
        "for the corpus (jsonl: documents.jsonl beside documents.parquet). A change publishes again and "
        "extracts nothing.",
    )
    strict: bool = Field(default=False, description="End with an error when a document failed, after all is written.")
    progress_seconds: float = Field(
        default=0,
        ge=0,
        description="Seconds between two lines of progress; 0 takes 5 on a terminal and 30 elsewhere.",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Settings:
        embedded = self.engine == "embedded"
        if (self.layout == "docvortex" and not embedded) or (self.layout in ("vlm", "doclayout-yolo") and embedded):
            raise ValueError(f"layout: {self.layout} does not go with engine: {self.engine}; use layout: auto")
        if self.engine == "http" and not self.vlm.servers:
            raise ValueError("engine: http needs vlm.servers, the URLs of the servers")
        if self.layout == "doclayout-yolo" and not self.detector.weights:
            raise ValueError("layout: doclayout-yolo needs detector.weights, the checkpoint file")
        return self

    @property
    def detected(self) -> str:
        """What finds the regions: ``layout``, or for auto that of the engine."""
        own = "docvortex" if self.engine == "embedded" else "vlm"
        return own if self.layout == "auto" else self.layout

    @property
    def on_gpu(self) -> bool:
        """Whether extraction takes a GPU of this machine."""
        return self.engine in ("vllm", "transformers")

    @property
    def ocr_model(self) -> str:
        """The size of the OCR model that reads all of the languages."""
        return "small" if "japan" in self.languages else "tiny"

    def output_digest(self) -> str:
        """Return 8 hex digits that change exactly when the text that comes out may change.

        It names the store of extracted documents, so going back to older settings finds the older store.
        """
        parts: list[Any] = [OUTPUT_VERSION, self.engine, self.detected, self.ocr_model, self.limits.page_pixels]
        if self.engine != "embedded":
            parts += [self.vlm.model, self.vlm.arguments, self.vlm.max_tokens, self.vlm.dpi]
        if self.detected == "doclayout-yolo":
            parts.append(self.layout_digest())
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:8]

    def layout_digest(self) -> str:
        """Return 8 hex digits that change when a detector may find other regions; it names their store."""
        parts = [OUTPUT_VERSION, self.detected, self.detector.weights, self.vlm.dpi, self.limits.page_pixels]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:8]

    def limits_digest(self) -> str:
        """Return 8 hex digits that change when a document that failed may succeed now."""
        parts = [self.limits.page_seconds, self.limits.memory_mb]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:8]


def load(config: Mapping[str, Any]) -> Settings:
    """Return the settings that ``config`` (Snakemake's merged dictionary) gives.

    Raises ConfigurationError with one line for each problem, all at once.
    """
    try:
        settings = Settings.model_validate(dict(config))
    except ValidationError as error:
        raise ConfigurationError("\n".join(_explain(problem) for problem in error.errors())) from None
    unknown = [name for name in settings.languages if name not in OCR_LANGUAGES]
    if unknown:
        raise ConfigurationError(
            "\n".join(f"languages: the OCR model has no {name!r}{_nearest(name, OCR_LANGUAGES)}" for name in unknown)
        )
    return settings


def _explain(problem: Any) -> str:
    """One line for one of pydantic's errors."""
    where = [str(part) for part in problem["loc"]]
    name = ".".join(where)
    if problem["type"] == "extra_forbidden":
        section = _section(where[:-1])
        known = list(section.model_fields)
        # A key of another section is the most likely meaning of one written at the wrong depth.
        known += [f"{key}.{inner}" for key, field in section.model_fields.items() for inner in _inner_keys(field)]
        return f"{name}: unknown setting{_nearest(where[-1], known, '.'.join(where[:-1]))}"
    message = str(problem["msg"]).removeprefix("Value error, ")
    if not where:
        return message  # of settings that don't fit together
    if name == "arch":
        message = "should be auto, cpu or a gfx name such as gfx1100"
    return f"{name}: {message[0].lower()}{message[1:]} (got {problem['input']!r})"


def _section(path: list[str]) -> type[BaseModel]:
    section: type[BaseModel] = Settings
    for part in path:
        annotation = section.model_fields[part].annotation
        assert isinstance(annotation, type) and issubclass(annotation, BaseModel)
        section = annotation
    return section


def _inner_keys(field: Any) -> list[str]:
    annotation = field.annotation
    return list(annotation.model_fields) if isinstance(annotation, type) and issubclass(annotation, BaseModel) else []


def _nearest(word: str, known: Any, prefix: str = "") -> str:
    """Return ", did you mean X?" for the nearest known name, or the known ones when none is near."""
    by_last = {re.split(r"\.", name)[-1]: name for name in known}
    match = difflib.get_close_matches(word, list(by_last), n=1, cutoff=0.5)
    if match:
        name = by_last[match[0]]
        return f", did you mean {prefix + '.' if prefix else ''}{name}?"
    return f"; known are {', '.join(known)}" if len(by_last) < 30 else ""
