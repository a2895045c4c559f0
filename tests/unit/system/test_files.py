import stat

import pytest

from carme.system.files import write


def test_writes_once_with_its_mode(tmp_path):
    file = tmp_path / "a/b.conf"
    assert write(file, "one\n", mode=0o600)
    assert not write(file, "one\n", mode=0o600)
    assert write(file, "two\n", mode=0o640)
    assert file.read_text() == "two\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert [path.name for path in file.parent.iterdir()] == ["b.conf"]


def test_a_failure_leaves_the_old_file_and_no_other(tmp_path):
    file = tmp_path / "b.conf"
    write(file, "old\n")
    with pytest.raises(LookupError):
        write(file, "new\n", owner="no-such-user")
    assert [path.name for path in tmp_path.iterdir()] == ["b.conf"]
    assert file.read_text() == "old\n"


def test_a_damaged_file_is_replaced(tmp_path):
    file = tmp_path / "b.json"
    file.write_bytes(b"\xff\xfe")
    assert write(file, "ü\n")
    assert not write(file, "ü\n")
    assert file.read_text(encoding="utf-8") == "ü\n"
