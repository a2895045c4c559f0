"""`carme images` from the outside, on a catalogue without containers."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from carme.errors import CarmeError
from carme_containers.commands import images
from carme_containers.publisher import Publisher
from support.images import make_image


@pytest.fixture
def site(tmp_path: Path) -> Path:
    toml = f'[images]\nfolder = "{tmp_path}/images"\napptainer = "/nonexistent/apptainer"\n'
    (tmp_path / "carme.toml").write_text(toml + '[slurm]\nbin = "/nonexistent"\n')
    return tmp_path


def run(site: Path, *words: str) -> Result:
    return CliRunner().invoke(images, ["--config", str(site / "carme.toml"), *words])


def fails(site: Path, *words: str) -> str:
    result = run(site, *words)
    assert isinstance(result.exception, CarmeError), result.output
    return str(result.exception)


@pytest.fixture
def published(site: Path) -> Path:
    for version in ("1", "2"):
        image = make_image(site, "base", version)
        Publisher(site / "images").publish(site / image.file, image)
    return site


def test_list(published: Path) -> None:
    output = run(published, "list").output
    assert "base:1" in output
    assert "base:2 default" in " ".join(output.split())
    listing = json.loads(run(published, "list", "--json").stdout)
    assert [(i["version"], i["default"], i["offered"]) for i in listing["images"]] == [
        ("2", True, True), ("1", False, True)
    ]  # fmt: skip


def test_list_of_nothing(site: Path) -> None:
    result = run(site, "list", "--all")
    assert result.exit_code == 0
    assert "no image is published" in result.output
    assert "recipe, not built" in result.output


def test_show(published: Path) -> None:
    output = run(published, "show", "base:1").output
    assert "base:1" in output
    assert "not signed" in output
    assert json.loads(run(published, "show", "base", "--json").stdout)["version"] == "2"
    assert "offered: base:2, base:1" in fails(published, "show", "other")


def test_retire_and_default(published: Path) -> None:
    assert "base:1: retired" in run(published, "retire", "base:1").output
    assert "no published image" in fails(published, "retire", "base:1")
    assert "retired" in run(published, "list", "--all").output


def test_default_by_publishing_a_version(published: Path) -> None:
    assert "base now means base:1" in run(published, "publish", "base:1").output
    assert json.loads(run(published, "show", "base", "--json").stdout)["version"] == "1"


def test_publish_what_is_not_built(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARME_CACHE", str(site / "cache"))
    assert "base:1.0 is not built" in fails(site, "publish", "base")


def test_prune_needs_to_know_what_runs(published: Path) -> None:
    run(published, "retire", "base:1")
    assert "does not say which images are in use" in fails(published, "prune")
    assert "base:1: removed" in run(published, "prune", "--assume-unused").output


@pytest.mark.parametrize("name", ["../base", "ba se", "BASE"])
def test_build_of_a_bad_name(site: Path, name: str) -> None:
    assert "cannot be the name of an image" in fails(site, "build", name)


def test_build_with_bad_arguments(site: Path) -> None:
    assert "NAME=VALUE" in fails(site, "build", "pytorch", "--arg", "TORCH")
    assert "no argument" in fails(site, "build", "pytorch", "--arg", "X=1")


def test_cache_needs_a_folder(published: Path) -> None:
    assert "images.node_cache" in fails(published, "cache")
    target = published / "node"
    assert "2 of 2 images" in run(published, "cache", "--folder", str(target)).output
    run(published, "retire", "base:1")
    assert "1 of 1 images" in run(published, "cache", "--folder", str(target)).output
    assert len(list(target.glob("*.sif"))) == 1


def test_build_without_an_engine(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{site}/no.sock")
    assert "no Docker engine answers" in fails(site, "build", "base", "--engine", "docker")
