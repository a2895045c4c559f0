"""Task graphs: operations that run when all they depend on is done.

A Petri net in which every task is a transition: it fires when each of its input places holds a
token, and leaves one for each task that waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from carme.errors import InputError
from carme.simulator.events.engine import SimulatedProcess, Simulation, Steps
from carme.simulator.events.operations import Join, Operation


class GraphTask(NamedTuple):
    """An operation, a name for the trace, and the tasks before it."""

    name: str
    operation: Operation
    after: tuple[int, ...]


class TaskGraph:
    """Tasks in any order; `add` returns the number of a task, for others to depend on."""

    def __init__(self) -> None:
        self.tasks: list[GraphTask] = []

    def add(self, name: str, operation: Operation, after: Iterable[int] = ()) -> int:
        """A new task; `after` holds numbers of tasks, also of ones that are added later."""
        self.tasks.append(GraphTask(name, operation, tuple(after)))
        return len(self.tasks) - 1

    def start(self, simulation: Simulation) -> list[SimulatedProcess]:
        """Start every task as a process, after the tasks that it depends on."""
        started: dict[int, SimulatedProcess] = {}
        for number in self._order():
            task = self.tasks[number]
            inputs = [started[before] for before in task.after]
            started[number] = simulation.process(_fire(task.operation, inputs), task.name)
        return [started[number] for number in range(len(self.tasks))]

    def _order(self) -> list[int]:
        """Numbers so that inputs come first, otherwise as added; refuses cycles."""
        missing = [set(task.after) for task in self.tasks]
        following: list[list[int]] = [[] for _ in self.tasks]
        for number, task in enumerate(self.tasks):
            for before in set(task.after):
                if not 0 <= before < len(self.tasks):
                    raise InputError(
                        f"{task.name} waits for task {before}", "there is no such task"
                    )
                following[before].append(number)
        ready = [number for number, inputs in enumerate(missing) if not inputs]
        order: list[int] = []
        for number in ready:  # grows while it is walked
            order.append(number)
            for later in following[number]:
                missing[later].discard(number)
                if not missing[later]:
                    ready.append(later)
        if len(order) < len(self.tasks):
            stuck = next(t.name for t, inputs in zip(self.tasks, missing, strict=True) if inputs)
            raise InputError(
                f"the graph has a cycle through {stuck!r}", "a task cannot wait for itself"
            )
        return order


def _fire(operation: Operation, inputs: list[SimulatedProcess]) -> Steps:
    for process in inputs:
        yield Join(process)
    yield operation
