"""Any name survives, and no two documents share a folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pdfquarry.names import document_folder, document_stem, escape, unescape

# A component as a POSIX file system allows it: any bytes but "/" and NUL, and not "." or "..".
components = (
    st.one_of(
        st.binary(min_size=1, max_size=255),
        st.text(min_size=1, max_size=60).map(lambda text: text.encode("utf-8", "replace")[:255]),
        st.sampled_from([b"a.pdf", b"A.PDF", b"images", b"a", b"con", b"..pdf", b"-rf.pdf", b" .pdf", b"a~0.pdf"]),
    )
    .map(lambda raw: raw.replace(b"/", b"_").replace(b"\0", b"_"))
    .filter(lambda raw: raw not in (b".", b".."))
)
trees = st.lists(components, min_size=1, max_size=5).map(lambda parts: os.fsdecode(b"/".join(parts)))


@given(trees)
@example("a\\x41.pdf")
@example("tab\tand\nline.pdf")
@example(os.fsdecode(b"\xff\xfe.pdf"))
def test_escaped_names_are_one_line_of_utf8_and_come_back(tree: str) -> None:
    text = escape(tree)
    assert not set(text) & set("\t\n\r\x85\u2028") and text.encode().decode() == text
    assert unescape(text) == tree


@given(trees)
def test_a_folder_stays_inside_the_tree_and_fits_the_file_system(tree: str) -> None:
    folder = document_folder(tree)
    assert not folder.is_absolute() and ".." not in folder.parts and folder.parts
    assert all(len(part.encode()) <= 200 for part in folder.parts) and len(str(folder).encode()) < 2500
    stem = document_stem(tree)
    assert stem and "/" not in stem and len(stem.encode()) <= 200 and not stem.startswith(".")


@given(trees, trees)
def test_no_two_documents_share_a_folder_even_where_case_is_ignored(one: str, other: str) -> None:
    if one != other:
        assert str(document_folder(one)).casefold() != str(document_folder(other)).casefold()


def test_plain_names_keep_their_place() -> None:
    assert str(document_folder("corpus/papers/two-column.pdf")) == "corpus/papers/two-column.pdf"
    assert document_stem("corpus/papers/two-column.pdf") == "two-column"


@pytest.mark.parametrize("names", [["a.pdf", "A.pdf", "a.PDF", "A.PDF"], ["x/a.pdf", "X/a.pdf"], ["a.pdf", "a"]])
def test_names_that_differ_little_get_folders_that_differ(names: list[str]) -> None:
    assert len({str(document_folder(name)).lower() for name in names}) == len(names)


def test_every_folder_can_be_made(tmp_path: Path) -> None:
    long = ["é" * 120 + ".pdf", "d" * 255 + "/" + "e" * 251 + ".pdf", "/".join(["deep"] * 900) + "/a.pdf"]
    for tree in [*long, "a\nb.pdf"]:
        folder = tmp_path / document_folder(tree)
        folder.mkdir(parents=True)
        (folder / f"{document_stem(tree)}.md").write_text("x")
