"""`simulate(workload, cluster, plan)`: one run, by the fast path of its plan."""

from __future__ import annotations

from carme.simulator import asynchronous, synchronous
from carme.simulator.hardware import Cluster
from carme.simulator.plan import Asynchronous, Averaging, BasePlan, ParameterServer, Synchronous
from carme.simulator.result import Result
from carme.simulator.workload import Workload


def simulate(workload: Workload, cluster: Cluster, plan: BasePlan) -> Result:
    """Time, energy, phases and memory of training `workload` on `cluster` by `plan`."""
    match plan:
        case Synchronous():
            return synchronous.run(workload, cluster, plan)
        case Asynchronous():
            return asynchronous.run(workload, cluster, plan)
        case ParameterServer():
            # Numba takes half a second to import; most plans do without.
            from carme.simulator import parameter_server

            return parameter_server.run(workload, cluster, plan)
        case Averaging():
            from carme.simulator import averaging

            return averaging.run(workload, cluster, plan)
    raise TypeError(f"no such plan: {type(plan).__name__}")
