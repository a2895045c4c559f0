"""Images and Slurm: builds as jobs, MPI under srun, files that jobs still need."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from carme.images.catalogue import load_catalogue
from carme.system.files import cache_dir
from carme_containers import ensure_image
from support.cluster import wait_for
from support.recipes import tiny_recipe, tiny_root

pytestmark = pytest.mark.timeout(1800)
ALL_REDUCE = """
from mpi4py import MPI
world = MPI.COMM_WORLD
print("rank", world.rank, "of", world.size, "sum", world.allreduce(world.rank + 1), flush=True)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="carme-images-") as path:
        Path(path).chmod(0o755)
        yield Path(path)


def images(cluster, *arguments, **options):
    """`carme images …` in the cluster, as root."""
    argv = [sys.executable, "-m", "carme.cli", "images", *arguments]
    run = cluster.run(argv, timeout=300, **options)
    return run.stdout + run.stderr


def with_recipes(cluster, folder):
    """The cluster's environment, with recipes and a cache in `folder`."""
    config = folder / "carme.toml"
    text = Path(cluster.env["CARME_CONFIG"]).read_text()
    assert "recipes = []" in text
    config.write_text(text.replace("recipes = []", f'recipes = ["{folder}/recipes"]'))
    return {**cluster.env, "CARME_CONFIG": str(config), "CARME_CACHE": str(folder / "cache")}


def test_build_as_a_job(cluster, folder):
    tiny_recipe(folder / "recipes", tiny_root(folder), post='echo "node $SLURMD_NODENAME"')
    env = with_recipes(cluster, folder)
    output = images(cluster, "build", "--slurm", "--partition=cpu", "tiny", env=env)
    assert "tiny:1: unchanged, published" in output, output
    assert [i.id for i in load_catalogue(cluster.config.images.folder).offered()].count("tiny:1")
    squeue = ["squeue", "-h", "-t", "all", "--name=carme-images", "-o", "%T"]
    # The epilog still runs after the end of the build.
    ended = ["COMPLETED"]
    wait_for(lambda: cluster.run(squeue).stdout.split() == ended, 30, "the job ends")
    images(cluster, "retire", "tiny")
    assert "tiny:1: removed" in images(cluster, "prune")


def test_mpi_under_srun(cluster):
    image = ensure_image("mpi", cluster.config, cache_dir(), print)
    path = cluster.config.images.folder / image.file
    program = ["python3", "-c", ALL_REDUCE]
    command = [cluster.config.images.apptainer, "-s", "exec", path, *program]
    user = cluster.users[0]
    output = cluster.run_as(
        user, ["srun", "--mpi=pmix", "-p", "cpu", "-n", "2", "--mem=1G", *command], timeout=120
    )
    assert sorted(output.stdout.splitlines()) == [f"rank {n} of 2 sum 3" for n in (0, 1)], output


def test_a_retired_image_stays_while_a_job_names_it(cluster, folder):
    publish = cluster.config.images.folder
    tiny_recipe(folder / "recipes", tiny_root(folder), name="old")
    env = with_recipes(cluster, folder)
    assert "published" in images(cluster, "build", "old", env=env)
    image = load_catalogue(publish).find("old")
    user = cluster.users[0]
    arguments = [
        "-p",
        "cpu",
        "--mem=100M",
        "-o",
        "/dev/null",
        f"--comment=carme-image={image.file}",
    ]
    sent = cluster.run_as(user, ["sbatch", "--parsable", *arguments, "--wrap=sleep 300"])
    job = sent.stdout.strip()
    assert job.isdigit(), sent
    try:
        images(cluster, "retire", "old")
        assert "old:1: retired, kept: a session uses it" in images(cluster, "prune")
        assert (publish / image.file).exists()
    finally:
        cluster.run(["scancel", job])
    wait_for(lambda: not cluster.run(["squeue", "-h", "-j", job]).stdout, 30, "the job's end")
    assert "old:1: removed" in images(cluster, "prune")
    assert not (publish / image.file).exists()
