"""What the tests of the tiny checkpoint share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from vllm_environment import environment as environment
from vllm_environment import python as python

sys.path.insert(0, str(Path(__file__).parent))  # for pages.py


@pytest.fixture(scope="session")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both documents and truth.json."""
    import pages

    folder = tmp_path_factory.mktemp("documents")
    pages.write(folder)
    return folder
