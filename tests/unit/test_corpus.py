"""Every PDF of a corpus is found, once, whatever the folder looks like."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pdfquarry.corpus import find, read_listing, write_listing
from pdfquarry.errors import CorpusError, ResultsError


def put(path: Path, data: bytes = b"x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def trees(*corpus: Path | str) -> list[str]:
    return [entry.tree for entry in find([str(item) for item in corpus])]


def test_subfolders_are_searched_and_endings_match_in_any_case(tmp_path: Path) -> None:
    for name in ["c/b.pdf", "c/s/a.PDF", "c/s/t/x.Pdf", "c/notes.txt", "c/pdf"]:
        put(tmp_path / name)
    assert trees(tmp_path / "c") == ["c/b.pdf", "c/s/a.PDF", "c/s/t/x.Pdf"]


def test_link_loops_end_and_linked_folders_are_entered_once(tmp_path: Path) -> None:
    put(tmp_path / "c/a/one.pdf")
    put(tmp_path / "elsewhere/two.pdf")
    (tmp_path / "c/a/loop").symlink_to(tmp_path / "c")
    (tmp_path / "c/0first").symlink_to(tmp_path / "c/a")
    (tmp_path / "c/b").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "c/dangling.pdf").symlink_to(tmp_path / "nothing")
    (tmp_path / "c/linked.pdf").symlink_to(tmp_path / "elsewhere/two.pdf")
    assert trees(tmp_path / "c") == ["c/a/one.pdf", "c/b/two.pdf", "c/linked.pdf"]


def test_names_of_any_bytes_survive_the_listing(tmp_path: Path) -> None:
    composed, decomposed = "é.pdf".encode(), b"e\xcc\x81.pdf"
    for raw in [b"\xff\xfe.pdf", b"tab\t.pdf", b"line\nend.pdf", b"back\\slash.pdf", composed, decomposed]:
        put(Path(os.fsdecode(os.fsencode(tmp_path) + b"/c/" + raw)))
    entries = find([str(tmp_path / "c")])
    assert len(entries) == 6
    listing = tmp_path / "listing.tsv"
    assert write_listing(listing, entries) and not write_listing(listing, entries)
    assert read_listing(listing) == entries
    assert all(os.path.exists(entry.path) for entry in read_listing(listing))


def test_pipes_and_folders_named_like_pdfs_are_no_documents(tmp_path: Path) -> None:
    put(tmp_path / "c/folder.pdf/inner.pdf")
    os.mkfifo(tmp_path / "c/pipe.pdf")
    assert trees(tmp_path / "c") == ["c/folder.pdf/inner.pdf"]


def test_globs_keep_the_tree_below_their_fixed_part(tmp_path: Path) -> None:
    for name in ["d/2023/a.pdf", "d/2024/x/b.pdf", "d/2024/c.dat"]:
        put(tmp_path / name)
    assert trees(f"{tmp_path}/d/20*/**/*.pdf") == ["d/2023/a.pdf", "d/2024/x/b.pdf"]
    assert trees(f"{tmp_path}/d/2024/*.dat") == ["2024/c.dat"]


def test_a_list_gives_paths_relative_to_itself_and_takes_any_name(tmp_path: Path) -> None:
    put(tmp_path / "deep/a.pdf"), put(tmp_path / "deep/no ending")
    listing = put(tmp_path / "list.txt", f"deep/a.pdf\n\n{tmp_path}/deep/no ending\n".encode())
    assert trees(listing) == [f"{tmp_path}/deep/a.pdf"[1:], f"{tmp_path}/deep/no ending"[1:]]


def test_a_file_given_twice_is_found_once(tmp_path: Path) -> None:
    put(tmp_path / "c/a.pdf")
    assert trees(tmp_path / "c", tmp_path / "c/a.pdf", f"{tmp_path}/c/*.pdf") == ["c/a.pdf"]


def test_two_folders_that_would_be_published_in_one_place_are_refused(tmp_path: Path) -> None:
    put(tmp_path / "x/pdfs/a.pdf"), put(tmp_path / "y/pdfs/a.pdf")
    with pytest.raises(CorpusError, match="would be published in one place"):
        trees(tmp_path / "x/pdfs", tmp_path / "y/pdfs")


def test_what_is_missing_is_told_all_at_once(tmp_path: Path) -> None:
    put(tmp_path / "list.txt", b"gone.pdf\n")
    with pytest.raises(CorpusError) as caught:
        trees(tmp_path / "no", f"{tmp_path}/*.none", tmp_path / "list.txt")
    assert len(str(caught.value).splitlines()) == 3
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorpusError, match="no PDF in"):
        trees(tmp_path / "empty")


def test_a_damaged_listing_is_named(tmp_path: Path) -> None:
    put(tmp_path / "c/a.pdf")
    write_listing(tmp_path / "l.tsv", find([str(tmp_path / "c")]))
    whole = (tmp_path / "l.tsv").read_bytes()
    for damaged in (whole[:-3], b"\xff" + whole, whole.replace(b"path", b"pass"), whole + b"a\tb\tx\ty\tz\n"):
        (tmp_path / "l.tsv").write_bytes(damaged)
        with pytest.raises(ResultsError, match=r"l\.tsv"):
            read_listing(tmp_path / "l.tsv")
