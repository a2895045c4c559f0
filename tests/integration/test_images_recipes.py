"""The shipped recipes, really built (once for each content) and run as a normal user."""

import re
import time

import pytest

from carme.system.files import cache_dir
from carme_containers.apptainer_engine import ApptainerEngine
from carme_containers.builder import Builder
from carme_containers.recipe import find_recipes, load_recipe
from support.containers import inside_as_nobody, real_apptainer, verify_as_nobody

# A first build takes minutes; after it, each of these takes seconds.
pytestmark = pytest.mark.timeout(1800)
RECIPES = sorted(find_recipes())
SAYS = {
    "base": "the server answers",
    "editor": "over a socket of mode 0700",
    "jax": "in 20 steps",
    "mpi": "all-reduce of 2 processes",
    "pytorch": "in 20 steps",
}


@pytest.fixture(scope="module")
def builder() -> Builder:
    apptainer = real_apptainer()
    return Builder(ApptainerEngine(apptainer), apptainer, cache_dir(), print)


@pytest.mark.parametrize("name", ["base", *(name for name in RECIPES if name != "base")])
def test_recipe(builder: Builder, name: str) -> None:
    recipe = load_recipe(name)
    result = builder.build(recipe)
    assert result.image.verified.passed
    lines = verify_as_nobody(builder.apptainer, result.path).splitlines()
    assert SAYS["base"] in lines[0], "a child proves what its parent promises"
    assert SAYS[name] in lines[-1]
    packages = result.image.packages
    assert packages.system["python3"]
    inside = {re.sub(r"[-_.]+", "-", key).lower(): v for key, v in packages.python.items()}
    for line in (recipe.folder / "requirements.txt").read_text().splitlines():
        if "==" in line:
            package, version = line.split("==")
            assert inside[package] == version
    assert "rfc3987-syntax" not in inside, "it would make every start a second slower"
    started = time.monotonic()
    assert not builder.build(load_recipe(name)).is_new
    assert time.monotonic() - started < 10  # a build takes minutes


def test_image_holds_no_settings_of_this_machine(builder: Builder) -> None:
    """Neither the build's folder of settings nor pip's addresses stay behind."""
    result = builder.build(load_recipe("base"))
    inside = inside_as_nobody(builder.apptainer, result.path)
    assert inside.run(["ls", "-A", "/mnt"]).stdout == ""
    assert inside.run(["env"]).stdout.count("PIP_") == 0
    assert inside.run(["ls", "/etc/pip.conf", "/root/.config/pip"]).stdout == ""
