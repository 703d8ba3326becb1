"""Settings known to work on an architecture: environment variables and engine arguments, each with its source.

They are data, ``config/arch/<arch>.yaml``; a card without a file takes that of the nearest one of its family.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pdfquarry.errors import ConfigurationError
from pdfquarry.gpus import MASKS

FOLDER = Path(__file__).resolve().parents[2] / "config" / "arch"
# Same instruction set, same troubles: the file of the family's best known card.
_FAMILIES = {"gfx110": "gfx1100", "gfx115": "gfx1151", "gfx120": "gfx1201", "gfx94": "gfx942", "gfx95": "gfx950"}


class Known(BaseModel):
    """A value that is known to work, and who says so."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: str | bool | int
    source: str = Field(min_length=1)


class ArchSettings(BaseModel):
    """What is known of an architecture.

    Args:
        cards: the cards that have it.
        environment: variables for the process, before anything is imported.
        engine: arguments for vLLM's engine.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    cards: str
    environment: dict[str, Known] = Field(default_factory=dict)
    engine: dict[str, Known] = Field(default_factory=dict)


def load(arch: str, folder: Path = FOLDER) -> ArchSettings:
    """Return what is known of ``arch``; of an unknown one, nothing.

    Raises ConfigurationError for a file that can't be used.
    """
    path = folder / f"{arch}.yaml"
    if not path.exists():
        family = next((name for prefix, name in _FAMILIES.items() if arch.startswith(prefix)), "")
        path = folder / f"{family}.yaml"
        if not path.exists():
            return ArchSettings(cards="unknown")
    try:
        return ArchSettings.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, yaml.YAMLError, ValidationError) as error:
        first = str(error).splitlines()[0]
        raise ConfigurationError(f"{path}: can't be used: {first}") from error


def shown(variables: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return variables as they may be written down: a key, token or password is not told."""
    secret = re.compile(r"KEY|TOKEN|SECRET|PASSW", re.IGNORECASE)
    return {name: "***" if value and secret.search(name) else value for name, value in sorted(variables.items())}


def job_variables(
    arch: str, own: Mapping[str, str], environ: Mapping[str, str], device: int | None = None
) -> dict[str, str | None]:
    """Return the variables that a job on a GPU sets (a text) or unsets (None), before it imports anything.

    Args:
        arch: the card's architecture.
        own: the user's ``environment.variables``, which win over everything.
        environ: the environment of the job; a variable that the user has set in the shell wins over what is known.
        device: the GPU's index without masks; the other masks are then unset, since ROCR's would renumber it and
            vLLM refuses a CUDA mask beside HIP's. None leaves the masks as the scheduler has set them.
    """
    variables: dict[str, str | None] = {
        name: str(one.value) for name, one in load(arch).environment.items() if name not in environ
    }
    if device is not None:
        mask = "CUDA_VISIBLE_DEVICES" if arch.startswith("sm_") else "HIP_VISIBLE_DEVICES"
        variables |= dict.fromkeys(MASKS) | {mask: str(device)}
    return variables | dict(own)
