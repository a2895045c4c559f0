"""Whole training runs: `simulate(workload, cluster, plan)` gives a SimulationResult."""

from __future__ import annotations

from carme.simulator.hardware.cluster import Cluster
from carme.simulator.plans.plan import (
    Asynchronous,
    Averaging,
    BasePlan,
    ParameterServer,
    Synchronous,
)
from carme.simulator.runs import asynchronous, synchronous
from carme.simulator.runs.result import SimulationResult
from carme.simulator.workloads.workload import Workload


def simulate(workload: Workload, cluster: Cluster, plan: BasePlan) -> SimulationResult:
    """The result of training `workload` on `cluster` by `plan`."""
    match plan:
        case Synchronous():
            return synchronous.run(workload, cluster, plan)
        case Asynchronous():
            return asynchronous.run(workload, cluster, plan)
        case ParameterServer():
            # Importing Numba takes half a second, and the other plans do not need it.
            from carme.simulator.runs import parameter_server

            return parameter_server.run(workload, cluster, plan)
        case Averaging():
            from carme.simulator.runs import averaging

            return averaging.run(workload, cluster, plan)
    raise TypeError(f"no such plan: {type(plan).__name__}")
