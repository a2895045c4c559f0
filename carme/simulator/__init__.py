"""What a training job takes and costs, on hardware one has or does not have.

    from carme import library
    from carme.simulator import Synchronous, simulate

    cluster = library.cluster_of("8xV100")
    result = simulate(library.workload("resnet-50"), cluster, Synchronous(gpus=8))

Pure: no I/O, no wall clock, no global random state. Hardware and workload files are read by
`carme.library`; commands live in `carme.simulator.commands`.
"""

from carme.simulator.analysis.monte_carlo import replicate
from carme.simulator.analysis.scaling_limits import survey
from carme.simulator.analysis.suite import Exhaustive, Outcome, Random, front, points
from carme.simulator.analysis.timeline import burst_figures, chrome_trace, window
from carme.simulator.events.engine import Simulation
from carme.simulator.events.operations import Arrive, Compute, Get, Join, Load, Put, Transfer, Wait
from carme.simulator.events.task_graph import TaskGraph
from carme.simulator.hardware.cluster import (
    Cluster,
    Gpu,
    LinkModel,
    NodeModel,
    StorageModel,
)
from carme.simulator.plans.plan import Asynchronous, Averaging, ParameterServer, Synchronous
from carme.simulator.runs.result import SimulationResult
from carme.simulator.runs.simulate import simulate
from carme.simulator.workloads.workload import Dataset, Workload

__all__ = [
    "Arrive",
    "Asynchronous",
    "Averaging",
    "Cluster",
    "Compute",
    "Dataset",
    "Exhaustive",
    "Get",
    "Gpu",
    "Join",
    "LinkModel",
    "Load",
    "NodeModel",
    "Outcome",
    "ParameterServer",
    "Put",
    "Random",
    "Simulation",
    "SimulationResult",
    "StorageModel",
    "Synchronous",
    "TaskGraph",
    "Transfer",
    "Wait",
    "Workload",
    "burst_figures",
    "chrome_trace",
    "front",
    "points",
    "replicate",
    "simulate",
    "survey",
    "window",
]
