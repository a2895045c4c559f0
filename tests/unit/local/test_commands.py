"""Which configuration `carme up`, `down` and `status` work with."""

from pathlib import Path

import pytest

from carme.errors import ConfigError
from carme.local import commands
from carme.local.cluster import SITE_FILE


def write(path: Path, title: str, folder: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'[cluster]\ntitle = "{title}"\n[local]\ndir = "{folder}"\n', encoding="utf-8")
    return path


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that CARME_CONFIG names."""
    path = write(tmp_path / "named.toml", "named", tmp_path / "its")
    monkeypatch.setenv("CARME_CONFIG", str(path))
    return path


def test_the_environment_names_the_file(named: Path, tmp_path: Path) -> None:
    assert named.exists()
    for for_up in (True, False):
        config = commands.chosen(None, None, for_up)
        assert (config.cluster.title, config.local.dir) == ("named", tmp_path / "its")


@pytest.mark.usefixtures("named")
def test_an_option_wins_over_the_environment(tmp_path: Path) -> None:
    given = write(tmp_path / "given.toml", "given", tmp_path / "other")
    assert commands.chosen(given, None, for_up=True).cluster.title == "given"
    config = commands.chosen(None, tmp_path / "third", for_up=True)
    assert (config.cluster.title, config.local.dir) == ("named", tmp_path / "third")
    write(tmp_path / "third" / SITE_FILE, "third", tmp_path / "third")
    assert commands.chosen(None, tmp_path / "third", for_up=True).cluster.title == "third"


@pytest.mark.usefixtures("named")
def test_up_takes_a_changed_file_and_down_what_runs(tmp_path: Path) -> None:
    write(tmp_path / "its" / SITE_FILE, "as it was", tmp_path / "its")
    assert commands.chosen(None, None, for_up=True).cluster.title == "named"
    assert commands.chosen(None, None).cluster.title == "as it was"


def test_the_file_of_the_parts_means_their_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered = write(tmp_path / "etc/carme.toml", "rendered", tmp_path)
    write(tmp_path / SITE_FILE, "given", tmp_path)
    monkeypatch.setenv("CARME_CONFIG", str(rendered))
    assert commands.chosen(None, None, for_up=True).cluster.title == "given"


def test_a_file_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARME_CONFIG", "/nowhere/carme.toml")
    with pytest.raises(ConfigError, match="no such file"):
        commands.chosen(None, None, for_up=True)


def test_without_the_environment_the_usual_folder_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CARME_CONFIG", raising=False)
    write(tmp_path / SITE_FILE, "remembered", tmp_path)
    assert commands.chosen(None, tmp_path).cluster.title == "remembered"
