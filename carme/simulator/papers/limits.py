"""Keuper and Pfreundt 2016; Pfreundt et al.: where strong scaling stalls, and why.

The text gives no table of the counts: strong scaling ends after "a few dozen nodes", by
communication, by skinny products when the share of the batch shrinks, or by input. One GPU a
node, FDR InfiniBand, as in the paper's experiments.
"""

from __future__ import annotations

from collections.abc import Mapping

from carme.simulator.analysis.scaling_limits import ScalingLimits, scaling_limits
from carme.simulator.hardware import Cluster, NodeModel
from carme.simulator.papers import PublishedFigure, around
from carme.simulator.plans import Synchronous
from carme.simulator.workload import Workload

BATCHES = {"alexnet": 256, "googlenet": 32}
CAUSES = ("communication", "skinny products")


def rows(workloads: Mapping[str, Workload], node: NodeModel) -> list[PublishedFigure]:
    """Stall counts and the causes that the paper names."""
    cluster = Cluster(name="k80-fdr", node=node.model_copy(update={"gpus": 1}), nodes=1)

    def limits(name: str, batch: int, max_gpus: int = 4096) -> ScalingLimits:
        plan = Synchronous(gpus=1, batch=batch, overlap=False, loader="raw")
        return scaling_limits(workloads[name], cluster, plan, max_gpus)

    parameters = workloads["vgg-19"].parameter_count / 1e6
    figures = [around("VGG-19, million parameters", reference=144, simulated=parameters, band=1.0)]
    for name, batch in BATCHES.items():
        points = limits(name, batch, max_gpus=256)
        stall = points.stalls_at or points.points[-1].gpus
        cause = next(point.limit for point in points.points if point.gpus >= stall)
        number = CAUSES.index(cause) + 1 if cause in CAUSES else 0
        title = f"{name}, batch {batch}"
        stalls, named = f"{title}: stalls at", f"{title}: cause is one that the paper names"
        figures += [
            PublishedFigure(
                stalls,
                reference="a few dozen",
                simulated=stall,
                unit="nodes",
                low=4,
                high=48,
                note=cause,
            ),
            PublishedFigure(named, reference="yes", simulated=number, low=1, high=2, note=cause),
        ]
    larger, usual = (limits("alexnet", batch).stalls_at or 4096 for batch in (1024, 256))
    title = "alexnet: a batch 4 times as large stalls later by"
    return [
        *figures,
        PublishedFigure(
            title,
            reference="later",
            simulated=larger / usual,
            unit="x",
            low=1.0,
            high=8,
            origin="worked out",
        ),
    ]
