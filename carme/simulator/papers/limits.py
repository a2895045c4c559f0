"""Keuper and Pfreundt 2016; Pfreundt et al.: where strong scaling stalls, and why.

The text gives no table of the counts: strong scaling ends after "a few dozen nodes", by
communication, by skinny products when the share of the batch shrinks, or by input. One GPU a
node, FDR InfiniBand, as in the paper's experiments.
"""

from __future__ import annotations

from collections.abc import Mapping

from carme.simulator.analysis.scaling_limits import scaling_limits
from carme.simulator.hardware import Cluster, NodeModel
from carme.simulator.papers import PublishedFigure, around
from carme.simulator.plans import Synchronous
from carme.simulator.workload import Workload

BATCHES = {"alexnet": 256, "googlenet": 32}
CAUSES = ("communication", "skinny products")


def rows(workloads: Mapping[str, Workload], node: NodeModel) -> list[PublishedFigure]:
    """Stall counts and the causes that the paper names."""
    single = node.model_copy(update={"gpus": 1})
    cluster = Cluster(name="k80-fdr", node=single, nodes=1)
    figures = [
        around(
            "VGG-19, million parameters", 144, workloads["vgg-19"].parameter_count / 1e6, "", 1.0
        )
    ]
    for name, batch in BATCHES.items():
        plan = Synchronous(gpus=1, batch=batch, overlap=False, loader="raw")
        limits = scaling_limits(workloads[name], cluster, plan, most=256)
        stall = limits.stalls_at or limits.points[-1].gpus
        cause = next(r.limit for r in limits.points if r.gpus >= stall)
        named = CAUSES.index(cause) + 1 if cause in CAUSES else 0
        figures.append(
            PublishedFigure(
                f"{name}, batch {batch}: stalls at", "a few dozen", stall, "nodes", 4, 48, cause
            )
        )
        figures.append(
            PublishedFigure(
                f"{name}, batch {batch}: cause is one that the paper names",
                "yes",
                named,
                "",
                1,
                2,
                cause,
            )
        )
    larger = scaling_limits(
        workloads["alexnet"], cluster, Synchronous(gpus=1, batch=1024, overlap=False, loader="raw")
    )
    usual = scaling_limits(
        workloads["alexnet"], cluster, Synchronous(gpus=1, batch=256, overlap=False, loader="raw")
    )
    ratio = (larger.stalls_at or 4096) / (usual.stalls_at or 4096)
    figures.append(
        PublishedFigure(
            "alexnet: a batch 4 times as large stalls later by", "later", ratio, "x", 1.0, 8
        )
    )
    return figures
