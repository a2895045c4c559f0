"""What a prediction says beside its value."""

import pytest

from carme import library
from carme.errors import MissingError
from carme.predict.cluster_hardware import known_gpu
from carme.predict.prediction import predict
from carme.simulator import Synchronous

WORKLOAD = library.workload("bert-base")
CLUSTER = library.cluster_of("8xV100")


def test_bursts_are_looked_for_in_short_pipelines_only():
    short = predict(WORKLOAD, CLUSTER, Synchronous(gpus=8, pipeline=8, batch=16))
    assert short.bursts
    long = predict(WORKLOAD, CLUSTER, Synchronous(gpus=8, pipeline=8, batch=5000))
    assert not long.bursts


def test_slurm_names_mean_the_same_gpu_as_in_cluster_files():
    """The form factor affects speed more than the memory size does."""
    assert known_gpu("tesla_v100-pcie-32gb", {}).name == "v100-pcie"
    assert known_gpu("tesla_v100-pcie-32gb", {"tesla_v100-pcie-32gb": "v100"}).name == "v100"
    with pytest.raises(MissingError, match="imagined"):
        known_gpu("imagined", {})
