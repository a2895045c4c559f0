"""The time, energy and memory that a training run takes on given hardware.

    from carme import library
    from carme.simulator import Synchronous, simulate

    cluster = library.cluster_of("8xV100")
    result = simulate(library.workload("resnet-50"), cluster, Synchronous(gpus=8))

The modules and subpackages lead from the inputs to a result; each imports only those above it:

    precision, cap_curves, frameworks
               types of numbers, clocks under power caps, costs of launches
    hardware   GPUs, links, nodes, storage, and the power they draw
    layers     layers with their flops, activations and parameters
    transformer, transformer_costs
               transformers by their sizes, and the layers that follow from them
    workload   a network with its data set and usual training parameters
    plans      how a workload is distributed: parallelism, sharding, recomputation, jitter
    pipeline_schedule
               the order of a pipeline's passes, and how long they take
    costs      one GPU's shard, kernel times, communication, data loading, memory: one step
    events     the discrete-event engine, and compiled queues for plans without a closed form
    runs       whole runs: `simulate` sums steps into a SimulationResult
    analysis   timelines, scaling limits, Monte Carlo, suites of many runs
    papers     published figures beside simulated ones
    commands   the command line, the only part that reads files and prints

Pure, except for `commands`: no I/O, no wall clock, no global random state. `carme.library` reads
hardware and workload files.
"""

from carme.simulator.analysis.scaling_limits import scaling_limits
from carme.simulator.analysis.search import (
    ExhaustiveSearch,
    Outcome,
    RandomSearch,
    grid_points,
    pareto_front,
    replicate,
)
from carme.simulator.analysis.timeline import burst_figures, chrome_trace, simulate_window
from carme.simulator.events.engine import Simulation, TaskGraph
from carme.simulator.events.operations import Arrive, Compute, Get, Join, Load, Put, Transfer, Wait
from carme.simulator.hardware import (
    Cluster,
    Gpu,
    LinkModel,
    NodeModel,
    StorageModel,
)
from carme.simulator.plans import Asynchronous, Averaging, ParameterServer, Synchronous
from carme.simulator.runs import simulate
from carme.simulator.runs.result import SimulationResult
from carme.simulator.workload import Dataset, Workload

__all__ = [
    "Arrive",
    "Asynchronous",
    "Averaging",
    "Cluster",
    "Compute",
    "Dataset",
    "ExhaustiveSearch",
    "Get",
    "Gpu",
    "Join",
    "LinkModel",
    "Load",
    "NodeModel",
    "Outcome",
    "ParameterServer",
    "Put",
    "RandomSearch",
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
    "grid_points",
    "pareto_front",
    "replicate",
    "scaling_limits",
    "simulate",
    "simulate_window",
]
