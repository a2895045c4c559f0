"""A purge removes what `up` made, and nothing beside it."""

import os
import subprocess
from pathlib import Path

import psutil
import pytest

from carme.config import Config
from carme.errors import InputError
from carme.local import cluster, devices, render, supervisor, unix_users
from carme.local.layout import Layout


def layout(folder: Path) -> Layout:
    config = Config()
    local = config.local.model_copy(update={"dir": folder})
    return Layout(config.model_copy(update={"local": local}), folder.parent / "cache")


@pytest.fixture(autouse=True)
def rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sudo rule of some cluster."""
    path = tmp_path / "sudoers"
    path.write_text("carme ALL=(%users) NOPASSWD: helper --config /elsewhere/etc/carme.toml x\n")
    monkeypatch.setattr(render, "sudoers_path", lambda layout: path)
    return path


def test_a_folder_that_is_no_clusters_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "state").mkdir(parents=True)
    with pytest.raises(InputError, match=r"no folder of a cluster"):
        cluster.check_is_cluster(layout(data))


@pytest.mark.parametrize("mark", [cluster.SITE_FILE, cluster.INSTALL_LOG])
def test_what_up_made_goes_and_the_rest_stays(tmp_path: Path, rule: Path, mark: str) -> None:
    its_layout = layout(tmp_path / "its")
    (its_layout.dir / mark).parent.mkdir(parents=True)
    (its_layout.dir / mark).write_text("")
    (its_layout.state / "slurm").mkdir(parents=True)
    (its_layout.dir / "thesis.tex").write_text("years")
    rule.write_text(f"carme ALL=(%users) NOPASSWD: helper --config {its_layout.etc}/carme.toml x\n")
    cluster.check_is_cluster(its_layout)
    assert cluster.remove_files(its_layout) == ["thesis.tex"]
    assert [path.name for path in its_layout.dir.iterdir()] == ["thesis.tex"]
    assert not rule.exists()
    (its_layout.dir / "thesis.tex").unlink()
    assert cluster.remove_files(its_layout) == []
    assert not its_layout.dir.exists()


def test_the_rule_of_another_cluster_stays(tmp_path: Path, rule: Path) -> None:
    its_layout = layout(tmp_path / "never-made")
    cluster.check_is_cluster(its_layout)
    assert cluster.remove_files(its_layout) == []
    assert rule.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device files")
def test_device_files_stay_while_another_cluster_uses_them(tmp_path: Path) -> None:
    dev, notes = tmp_path / "dev", tmp_path / "notes"
    dev.mkdir()
    (dev / "nvidia0").write_text("the machine's own")
    one, two = layout(tmp_path / "one"), layout(tmp_path / "two")
    assert devices.ensure(one, dev, notes)
    assert not devices.ensure(two, dev, notes)
    names = sorted(path.name for path in dev.iterdir())
    devices.remove(one, dev, notes)
    assert sorted(path.name for path in dev.iterdir()) == names
    devices.remove(two, dev, notes)
    assert [path.name for path in dev.iterdir()] == ["nvidia0"]
    assert not notes.exists()


@pytest.mark.parametrize(
    "place", ["cpuacct/slurm_gpu01/uid_0/job_5", "system.slice/gpu01_slurmstepd.scope/job_5"]
)
def test_jobs_are_found_in_both_kinds_of_cgroups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    its_layout = layout(tmp_path / "its")
    mine = psutil.Process().username()
    # A user who was recorded and then not made.
    monkeypatch.setattr(
        unix_users,
        "created",
        lambda _: unix_users.CreatedUsers({mine: "", "nobody-here": ""}, ()),
    )
    folder = tmp_path / "cgroup" / place / "step_0"
    folder.mkdir(parents=True)
    monkeypatch.setattr(supervisor, "CGROUP_ROOT", tmp_path / "cgroup")
    with subprocess.Popen(["sleep", "60"]) as job:
        (folder / "cgroup.procs").write_text(f"{job.pid}\n")
        assert [process.pid for process in supervisor._in_job_cgroups(its_layout)] == [job.pid]
        job.kill()


def test_the_user_that_builds_images_goes_with_the_last_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules, other = tmp_path / "sudoers.d", tmp_path / "other/etc/carme.toml"
    rules.mkdir()
    assert not cluster.has_other_cluster(rules)
    (rules / "carme-hub2").write_text(f"hub2 ALL=(%users) NOPASSWD: helper --config {other} x\n")
    assert not cluster.has_other_cluster(rules)  # a rule that a broken cluster left
    other.parent.mkdir(parents=True)
    other.touch()
    assert cluster.has_other_cluster(rules)

    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(cluster, "run_module", lambda *argv, **_: ran.append(argv))
    monkeypatch.setattr(cluster.LocalCluster, "down", lambda *_: None)
    monkeypatch.setattr(cluster.unix_users, "remove", lambda layout: [])
    monkeypatch.setattr(cluster.devices, "remove", lambda layout: None)
    for is_last in (False, True):
        its = layout(tmp_path / "its")
        (its.dir / cluster.SITE_FILE).parent.mkdir(parents=True)
        (its.dir / cluster.SITE_FILE).touch()
        monkeypatch.setattr(cluster, "has_other_cluster", lambda last=is_last: not last)
        purged = cluster.LocalCluster.__new__(cluster.LocalCluster)
        purged.__dict__["layout"] = its
        purged.purge(lambda line: None)
        assert bool(ran) == is_last
    assert ran == [("carme_containers", "--remove-build-user")]
