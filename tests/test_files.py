"""Files: only regular ones are read, of a bounded size; nothing is written through a link."""

import os

import pytest

from rlx.files import read_bounded, write_atomically


def test_a_regular_file_is_read_whole(tmp_path):
    (tmp_path / "a").write_bytes(b"four")
    (tmp_path / "link").symlink_to("a")
    assert read_bounded(tmp_path / "a") == b"four"
    assert read_bounded(tmp_path / "link", limit=4) == b"four"


def test_what_is_larger_than_expected_is_not_read(tmp_path):
    (tmp_path / "a").write_bytes(b"12345")
    with pytest.raises(OSError, match="5 bytes, where at most 4"):
        read_bounded(tmp_path / "a", limit=4)


def test_devices_and_fifos_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    for path in (tmp_path / "fifo", tmp_path / "zeros", tmp_path):
        with pytest.raises(OSError, match=r"not a regular file|directory"):
            read_bounded(path)


def test_links_are_replaced_not_written_through(tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("mine")
    for name in ("a", ".a.writing"):
        (tmp_path / name).symlink_to(outside)
    write_atomically(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_text() == "new"
    assert not (tmp_path / "a").is_symlink()
    assert outside.read_text() == "mine"
