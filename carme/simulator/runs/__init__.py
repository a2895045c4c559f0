"""Whole training runs: `simulate(workload, cluster, plan)` gives a SimulationResult."""

from carme.simulator.hardware import Cluster
from carme.simulator.plans import Asynchronous, Averaging, BasePlan, ParameterServer, Synchronous
from carme.simulator.runs.asynchronous import run_asynchronous
from carme.simulator.runs.queued import run_averaging, run_parameter_server
from carme.simulator.runs.result import SimulationResult
from carme.simulator.runs.synchronous import run_synchronous
from carme.simulator.workload import Workload


def simulate(workload: Workload, cluster: Cluster, plan: BasePlan) -> SimulationResult:
    """The result of training `workload` on `cluster` by `plan`."""
    match plan:
        case Synchronous():
            return run_synchronous(workload, cluster, plan)
        case Asynchronous():
            return run_asynchronous(workload, cluster, plan)
        case ParameterServer():
            return run_parameter_server(workload, cluster, plan)
        case Averaging():
            return run_averaging(workload, cluster, plan)
    raise TypeError(f"no such plan: {type(plan).__name__}")
