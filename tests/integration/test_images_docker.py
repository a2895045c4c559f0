"""Building with a real Docker engine, through its SDK, and converting to SIF."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from carme.errors import MissingError, UnavailableError
from carme.system.files import cache_dir
from carme_containers.apptainer_engine import ApptainerEngine
from carme_containers.builder import Builder
from carme_containers.docker_engine import DockerEngine
from carme_containers.recipe import load_recipe
from support.containers import docker_engine, real_apptainer, verify_as_nobody
from support.recipes import tiny_recipe, tiny_root

pytestmark = pytest.mark.timeout(1800)
DOCKERFILE = """FROM scratch
ARG WORD=none
COPY root /
COPY verify /opt/carme/verify
RUN chmod 755 /opt/carme/verify; echo "$WORD" >/opt/word
"""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="carme-docker-") as path:
        Path(path).chmod(0o755)
        yield Path(path)


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[DockerEngine]:
    apptainer = real_apptainer()
    private = folder / "engine"
    private.mkdir()
    with docker_engine(private) as address, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", address)
        engine = DockerEngine(ApptainerEngine(apptainer))
        yield engine
        engine.client.close()


def write(folder: Path, dockerfile: str = DOCKERFILE, verify: str = "cat /opt/word") -> None:
    more = '[arguments.WORD]\ndefault = "none"'
    home = tiny_recipe(folder / "recipes", Path("unused"), verify=verify, more=more)
    (home / "Dockerfile").write_text(dockerfile)
    tiny_root(home)


def build(folder: Path, engine: DockerEngine, **arguments: str) -> str:
    recipe = load_recipe("tiny", (folder / "recipes",), arguments=arguments, engine="docker")
    program = engine.apptainer.program
    result = Builder(engine, program, folder / "cache", print).build(recipe)
    assert result.image.built.engine.startswith("docker ")
    return verify_as_nobody(program, result.path)


def test_build_convert_run(folder: Path, engine: DockerEngine) -> None:
    write(folder)
    assert build(folder, engine) == "none"
    assert build(folder, engine, WORD="other") == "other"


def test_what_goes_wrong(folder: Path, engine: DockerEngine) -> None:
    write(folder, DOCKERFILE + "RUN echo 'error: this cannot work'; exit 3\n")
    with pytest.raises(UnavailableError, match="tiny:1 could not be built: error: "):
        build(folder, engine)
    write(folder, DOCKERFILE + "NONSENSE\n")
    with pytest.raises(UnavailableError, match="tiny:1 could not be built"):
        build(folder, engine)
    write(folder, verify="echo the purpose is not met; exit 1")
    with pytest.raises(UnavailableError, match="its verify fails: the purpose is not met"):
        build(folder, engine)
    (folder / "recipes/tiny/Dockerfile").unlink()
    with pytest.raises(MissingError, match="Dockerfile is missing"):
        build(folder, engine)
    shutil.rmtree(folder / "recipes")


def test_base_from_its_dockerfile(engine: DockerEngine) -> None:
    """The Dockerfile of `base` gives the same packages as its definition, and passes its verify."""
    program = engine.apptainer.program
    docker_build = Builder(engine, program, cache_dir(), print).build(
        load_recipe("base", engine="docker")
    )
    assert "the server answers" in verify_as_nobody(program, docker_build.path)
    apptainer_build = Builder(engine.apptainer, program, cache_dir(), print).build(
        load_recipe("base")
    )
    assert docker_build.image.packages.python == apptainer_build.image.packages.python
