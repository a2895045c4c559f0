"""A small cluster, its images and a user with two accounts, for tests of requests and form."""

from datetime import UTC, datetime

import pytest

from carme.images.catalogue import (
    Application,
    BuildRecord,
    Catalogue,
    CatalogueIndex,
    Image,
    VerificationResult,
)
from carme.requests.slurm_user import SlurmUser
from carme.slurm.models import Node, Partition, Reservation
from carme.slurm.rights import Association, JobLimits, Qos, UserRights
from carme.slurm.snapshot import Snapshot
from carme.slurm.states import NodeState

GIB = 2**30
NOW = 1000.0
RIGHTS = UserRights(
    user="ann",
    enforced=("associations", "limits", "qos"),
    default_account="lab",
    associations=(
        Association(account="lab", user="ann", qos=("normal", "short"), default_qos="normal"),
        Association(
            account="course",
            user="ann",
            qos=("normal",),
            limits=JobLimits(
                max_seconds=7200,
                per_job={"mem": 2 * GIB, "cpu": 4},
                minutes_per_job={"gres/gpu": 180},
            ),
        ),
        Association(account="gpuless", user="ann", partition="cpu", qos=("normal",)),
    ),
    accounts=(
        Association(account="lab", parent="root"),
        Association(account="course", parent="school", below=()),
        Association(
            account="school",
            parent="root",
            below=("course",),
            limits=JobLimits(group={"gres/gpu": 2}),
        ),
    ),
    qos=(
        Qos(name="normal", limits=JobLimits(per_user={"gres/gpu": 3})),
        Qos(
            name="short",
            limits=JobLimits(max_seconds=3600, per_user={"gres/gpu": 2}, max_jobs=2),
        ),
    ),
)
ANN = SlurmUser("ann", frozenset({"ann", "students"}), RIGHTS)


@pytest.fixture
def snapshot():
    """Two GPU nodes of different kinds, one without; a closed partition."""
    up = {"state": NodeState.IDLE, "cpus": 8, "memory_bytes": 8 * GIB}
    return Snapshot(
        taken_at=0,
        partitions=(
            Partition(
                name="gpu",
                default=True,
                nodes=("gpu01", "gpu02"),
                max_seconds=8 * 3600,
                gpus={"a100": 4, "t4": 2},
            ),
            Partition(name="cpu", nodes=("cpu01",), max_seconds=24 * 3600),
            Partition(name="old", state="DOWN", nodes=("cpu01",)),
            Partition(name="secret", hidden=True, nodes=("cpu01",)),
        ),
        nodes=(
            Node(name="gpu01", gpus={"a100": 4}, gpus_used={"a100": 3}, partitions=("gpu",), **up),
            Node(
                name="gpu02",
                gpus={"t4": 2},
                partitions=("gpu",),
                **{**up, "cpus": 32, "memory_bytes": 64 * GIB},
            ),
            Node(name="cpu01", partitions=("cpu", "old", "secret"), **up),
        ),
    )


@pytest.fixture
def catalogue(tmp_path):
    now = datetime(2026, 1, 1, tzinfo=UTC)
    image = Image(
        name="base",
        version="1.0",
        title="Base <b>",
        file="base-1.0.sif",
        digest="sha256:" + "0" * 64,
        size_bytes=1,
        recipe_hash="x",
        applications=(Application(name="lab", title="JupyterLab"),),
        built=BuildRecord(at=now, engine="apptainer"),
        verified=VerificationResult(at=now, passed=True),
    )
    return Catalogue(tmp_path, CatalogueIndex(images=(image,), defaults={"base": "1.0"}))


def reservation(**values):
    """A reservation of gpu02 that began 500 seconds ago."""
    base = {"name": "class", "starts_at": 500, "ends_at": 500 + 7200, "nodes": ("gpu02",)}
    return Reservation(**{**base, **values})
