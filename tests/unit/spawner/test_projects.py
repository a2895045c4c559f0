import getpass
import grp
import os

from carme_spawner.options import project_folders


def test_only_folders_of_the_users_own_groups_count(tmp_path):
    mine = grp.getgrgid(os.getgid()).gr_name
    (tmp_path / mine).mkdir()
    (tmp_path / "others").mkdir()
    assert project_folders(tmp_path, getpass.getuser()) == {mine: tmp_path / mine}


def test_a_link_is_no_project_folder(tmp_path):
    mine = grp.getgrgid(os.getgid()).gr_name
    (tmp_path / mine).symlink_to("/etc")
    assert project_folders(tmp_path, getpass.getuser()) == {}


def test_no_root_and_no_such_user(tmp_path):
    assert project_folders(None, getpass.getuser()) == {}
    assert project_folders(tmp_path, "nobody-at-all") == {}
