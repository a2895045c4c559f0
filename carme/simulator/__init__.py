"""What a training job takes and costs, on hardware one has or does not have.

    from carme import library
    from carme.simulator import Synchronous, simulate

    cluster = library.cluster_of("8xV100")
    result = simulate(library.workload("resnet-50"), cluster, Synchronous(gpus=8))

Pure: no I/O, no wall clock, no global random state. Hardware and workload files are read by
`carme.library`; commands live in `carme.simulate`.
"""

from carme.simulator.engine import Simulation
from carme.simulator.graph import Graph
from carme.simulator.hardware import Cluster, Gpu, LinkType, NodeType, StorageType
from carme.simulator.limits import survey
from carme.simulator.montecarlo import replicate
from carme.simulator.operations import Arrive, Compute, Get, Join, Load, Put, Transfer, Wait
from carme.simulator.plan import Asynchronous, Averaging, ParameterServer, Synchronous
from carme.simulator.result import Result
from carme.simulator.run import simulate
from carme.simulator.suite import Exhaustive, Outcome, Random, front, points
from carme.simulator.timeline import burst_figures, chrome_trace, window
from carme.simulator.workload import Dataset, Workload

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
    "Graph",
    "Join",
    "LinkType",
    "Load",
    "NodeType",
    "Outcome",
    "ParameterServer",
    "Put",
    "Random",
    "Result",
    "Simulation",
    "StorageType",
    "Synchronous",
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
