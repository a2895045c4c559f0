"""What a prediction says beside its value."""

from carme import library
from carme.predict.prediction import predict
from carme.simulator import Synchronous

WORKLOAD = library.workload("bert-base")
CLUSTER = library.cluster_of("8xV100")


def test_bursts_are_looked_for_in_short_pipelines_only():
    short = predict(WORKLOAD, CLUSTER, Synchronous(gpus=8, pipeline=8, batch=16))
    assert short.bursts
    long = predict(WORKLOAD, CLUSTER, Synchronous(gpus=8, pipeline=8, batch=5000))
    assert not long.bursts
