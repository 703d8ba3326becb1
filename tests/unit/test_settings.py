"""Settings are checked all at once, in words that help."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pdfquarry.errors import ConfigurationError
from pdfquarry.settings import Settings, load

ROOT = Path(__file__).resolve().parents[2]


def lines(config: dict[str, object]) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        load(config)
    return str(caught.value).splitlines()


def test_all_problems_are_told_at_once_one_line_each() -> None:
    told = lines({"enigne": "x", "arch": "rtx", "pages_per_shard": "0", "limits": {"page_second": "3"}})
    assert told == [
        "arch: should be auto, cpu or a gfx name such as gfx1100 (got 'rtx')",
        "pages_per_shard: input should be greater than or equal to 1 (got '0')",
        "limits.page_second: unknown setting, did you mean limits.page_seconds?",
        "enigne: unknown setting, did you mean engine?",
    ]


def test_a_key_at_the_wrong_depth_is_recognised() -> None:
    assert lines({"memory_mb": 5}) == ["memory_mb: unknown setting, did you mean limits.memory_mb?"]


def test_an_unknown_language_names_the_nearest() -> None:
    told = lines({"languages": "en,chinese"})
    assert told == ["languages: the OCR model has no 'chinese', did you mean chinese_cht?"]


def test_strings_from_the_command_line_become_what_is_meant() -> None:
    settings = load({"corpus": "/data/a, b", "strict": "true", "pages_per_shard": "5", "formats": "markdown,jsonl"})
    assert settings.corpus == ["/data/a, b"] and settings.strict and settings.pages_per_shard == 5
    assert settings.formats == ["markdown", "jsonl"]
    assert load({"limits": {"page_seconds": "1.5"}}).limits.page_seconds == 1.5


def test_an_empty_configuration_is_the_default_file() -> None:
    assert load(yaml.safe_load((ROOT / "config/config.yaml").read_text())) == load({}) == Settings()


def test_the_generated_files_are_in_step_with_the_models() -> None:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        from make_config import generated
    finally:
        sys.path.pop(0)
    stale = [path.name for path, text in generated().items() if not path.exists() or path.read_text() != text]
    assert not stale, f"run python scripts/make_config.py: {stale}"


def test_only_what_changes_the_output_changes_its_digest() -> None:
    base = Settings()
    same = [{"corpus": "/x"}, {"formats": ["jsonl"]}, {"strict": True}, {"pages_per_shard": 7}, {"languages": ["de"]}]
    same += [{"limits": {"memory_mb": 999}}, {"limits": {"page_seconds": 9}}, {"results": "elsewhere"}]
    for change in same:
        assert load(change).output_digest() == base.output_digest(), change
    assert load({"limits": {"page_pixels": 100_000}}).output_digest() != base.output_digest()
    assert load({"limits": {"memory_mb": 999}}).limits_digest() != base.limits_digest()


values = st.one_of(st.none(), st.text(max_size=8), st.integers(), st.lists(st.none()))


def test_only_a_language_that_needs_another_model_changes_the_output() -> None:
    assert load({"languages": "de"}).ocr_model == Settings().ocr_model == "tiny"
    assert load({"languages": "en,japan"}).ocr_model == "small"
    assert load({"languages": "en,japan"}).output_digest() != Settings().output_digest()


@given(st.dictionaries(st.one_of(st.text(max_size=12), st.sampled_from(list(Settings.model_fields))), values))
def test_no_configuration_ends_in_a_traceback(config: dict[str, object]) -> None:
    try:
        load(config)
    except ConfigurationError as error:
        assert str(error)
