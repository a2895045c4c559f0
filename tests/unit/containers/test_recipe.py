"""Recipes: what is shipped is sound, what is wrong is named."""

import re
import shutil
from pathlib import Path

import pytest

from carme.errors import CarmeError, ConfigError, InputError, MissingError
from carme_containers.recipe import OWN_RECIPES, find_recipes, load_recipe

MANIFEST = 'title = "T"\ndescription = "D"\nversion = "1"\n'


def write_recipe(folder: Path, name: str, manifest: str = MANIFEST) -> Path:
    home = folder / name
    home.mkdir(parents=True)
    (home / "image.toml").write_text(manifest)
    (home / "image.def").write_text("Bootstrap: scratch\n")
    (home / "verify").write_text("#!/bin/sh\n")
    return home


@pytest.mark.parametrize("name", sorted(find_recipes()))
def test_shipped_recipe_is_complete(name: str) -> None:
    recipe = load_recipe(name)
    for file in ("image.def", "Dockerfile", "image.toml", "verify"):
        assert (recipe.folder / file).is_file(), file
    for variant in recipe.manifest.variants:
        assert load_recipe(name, variant=variant).hash != recipe.hash
    pins = (recipe.folder / "requirements.txt").read_text().splitlines()
    assert all(re.fullmatch(r"#.*|[a-z0-9-]+==\S+", line) for line in pins)


@pytest.mark.parametrize(
    "path", [p for p in sorted(OWN_RECIPES.rglob("*")) if p.is_file() and p.suffix != ".pyc"]
)
def test_recipes_name_no_host(path: Path) -> None:
    hosts = re.findall(r"https?://([a-zA-Z0-9.-]+\.[a-z]{2,})", path.read_text())
    assert not hosts, f"{path} names {hosts}"


def test_there_are_the_promised_recipes() -> None:
    assert set(find_recipes()) >= {"base", "pytorch", "jax", "editor", "mpi"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_recipe(tmp_path, "one")
    return tmp_path


def test_hash_follows_content_arguments_and_parents(folder: Path) -> None:
    write_recipe(folder, "two", MANIFEST + 'parent = "one"\n[arguments.A]\ndefault = "1"\n')
    folders = (folder,)
    before = load_recipe("two", folders)
    assert before.hash == load_recipe("two", folders).hash
    assert load_recipe("two", folders, arguments={"A": "2"}).hash != before.hash
    assert load_recipe("two", folders, engine="docker").hash != before.hash
    (folder / "one/verify").write_text("#!/bin/sh\ntrue\n")
    after = load_recipe("two", folders)
    assert after.hash != before.hash
    (folder / "two/extra").write_text("x")
    assert load_recipe("two", folders).hash != after.hash


def test_hash_does_not_depend_on_the_place(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    shutil.copytree(folder / "one", other / "one")
    assert load_recipe("one", (other,)).hash == load_recipe("one", (folder,)).hash


def test_site_recipe_replaces_ours(folder: Path) -> None:
    write_recipe(folder, "base")
    assert load_recipe("base", (OWN_RECIPES, folder)).folder == folder / "base"
    # ... and is the parent of what builds on it.
    assert load_recipe("pytorch", (OWN_RECIPES, folder)).parent.folder == folder / "base"  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["../etc", "a b", "A", "", "a/b", "-x", "x" * 41, "a\n", "a;b"])
def test_bad_name(name: str, folder: Path) -> None:
    with pytest.raises(InputError, match="cannot be the name"):
        load_recipe(name, (folder,))


def test_unknown_recipe_lists_the_known(folder: Path) -> None:
    with pytest.raises(InputError, match=r"no recipe 'three' \(there are: one\)"):
        load_recipe("three", (folder,))


def test_missing_parent(folder: Path) -> None:
    write_recipe(folder, "two", MANIFEST + 'parent = "zero"\n')
    with pytest.raises(MissingError, match="recipe two: its parent 'zero' has no recipe"):
        load_recipe("two", (folder,))


def test_circle_of_parents(folder: Path) -> None:
    write_recipe(folder, "two", MANIFEST + 'parent = "three"\n')
    write_recipe(folder, "three", MANIFEST + 'parent = "two"\n')
    with pytest.raises(ConfigError, match="two → three → two"):
        load_recipe("two", (folder,))


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ("title = ", "not valid TOML"),
        (MANIFEST + "colour = 1\n", "colour: no such key"),
        ('title = "T"\nversion = "1"\n', "description: field required"),
        (MANIFEST.replace('"1"', '"1 0"'), "version"),
        (MANIFEST + '[gpu]\nuse = "maybe"\n', "gpu.use"),
        (
            MANIFEST + '[[applications]]\nname = "x"\ntitle = "X"\npath = "lab"\n',
            "applications.0.path",
        ),
        (MANIFEST + "[hints]\ncpus = 0\n", "hints.cpus"),
        (MANIFEST + '[arguments.lower]\ndefault = "x"\n', "arguments.lower"),
    ],
)
def test_bad_manifest_names_file_and_key(folder: Path, manifest: str, message: str) -> None:
    write_recipe(folder, "bad", manifest)
    with pytest.raises(CarmeError) as caught:
        load_recipe("bad", (folder,))
    assert message in str(caught.value)
    assert "bad/image.toml" in str(caught.value)


def test_missing_verify(folder: Path) -> None:
    (folder / "one/verify").unlink()
    with pytest.raises(MissingError, match="one/verify is missing"):
        load_recipe("one", (folder,))


def test_arguments_are_checked(folder: Path) -> None:
    write_recipe(
        folder,
        "two",
        MANIFEST + '[arguments.A]\ndefault = "x"\nchoices = ["x", "y"]\n[arguments.B]\n',
    )
    folders = (folder,)
    assert load_recipe("two", folders, arguments={"A": "y"}).arguments == {"A": "y", "B": ""}
    with pytest.raises(InputError, match="one of: x, y"):
        load_recipe("two", folders, arguments={"A": "z"})
    with pytest.raises(InputError, match="no argument 'C'"):
        load_recipe("two", folders, arguments={"C": "z"})
    for value in ("a b", "$(id)", "a;b", "a\nb", "'"):
        with pytest.raises(InputError, match="not possible"):
            load_recipe("two", folders, arguments={"B": value})
    with pytest.raises(InputError, match="no variant 'gpu'"):
        load_recipe("two", folders, variant="gpu")


def test_variant_changes_words_needs_and_version() -> None:
    recipe = load_recipe("pytorch", variant="gpu")
    assert recipe.id == "pytorch:2.13-gpu"
    assert recipe.manifest.gpu.use == "required"
    assert recipe.arguments == {"TORCH": "2.13.0"}
    assert "GPU" in recipe.manifest.title


def test_link_that_leaves_the_recipe_is_refused(folder: Path) -> None:
    (folder / "one/inner").symlink_to("verify")
    assert load_recipe("one", (folder,)).hash
    (folder / "one/loop").symlink_to("loop")
    assert load_recipe("one", (folder,)).hash
    (folder / "one/outer").symlink_to("/etc/passwd")
    with pytest.raises(InputError, match="leaves the recipe"):
        load_recipe("one", (folder,)).hash  # noqa: B018 (it reads the files)
