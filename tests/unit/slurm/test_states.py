import pytest
from hypothesis import given
from hypothesis import strategies as st

from carme.slurm.states import (
    JobState,
    NodeAvailability,
    NodeState,
    node_availability,
    parse_job_state,
    parse_node_state,
)


@pytest.mark.parametrize("state", JobState)
def test_every_state_is_in_one_group(state: JobState) -> None:
    groups = [state.waiting, state.active, state.ending, state.ended]
    assert sum(groups) == (state is not JobState.UNKNOWN)


@pytest.mark.parametrize(
    ("words", "state"),
    [
        (("RUNNING",), JobState.RUNNING),
        (("running",), JobState.RUNNING),
        (("CANCELLED by 1001",), JobState.CANCELLED),
        (("CANCELLED+",), JobState.CANCELLED),
        (("OUT_OF_ME+",), JobState.OUT_OF_MEMORY),
        (("RUNNING", "COMPLETING"), JobState.COMPLETING),
        (("PENDING", "REQUEUE_HOLD"), JobState.REQUEUE_HOLD),
        (("RUNNING", "FROM_THE_FUTURE"), JobState.RUNNING),
        (("PD",), JobState.PENDING),
        (("QUANTUM",), JobState.UNKNOWN),
        ((), JobState.UNKNOWN),
    ],
)
def test_parse_job_state(words: tuple[str, ...], state: JobState) -> None:
    assert parse_job_state(*words) is state


def test_an_unknown_state_is_never_the_end() -> None:
    assert not parse_job_state("QUANTUM").ended


@pytest.mark.parametrize(
    ("words", "state", "flags"),
    [
        (("IDLE",), NodeState.IDLE, ()),
        (("IDLE+DRAIN",), NodeState.IDLE, ("DRAIN",)),
        (("MIXED+PLANNED",), NodeState.MIXED, ("PLANNED",)),
        (("MIXED", "DRAIN"), NodeState.MIXED, ("DRAIN",)),
        (("DOWN*+DRAIN",), NodeState.DOWN, ("DRAIN", "NOT_RESPONDING")),
        (("idle~",), NodeState.IDLE, ("POWERED_DOWN",)),
        (("drained$",), NodeState.IDLE, ("DRAIN", "MAINTENANCE")),
        (("draining",), NodeState.ALLOCATED, ("DRAIN",)),
        (("maint",), NodeState.IDLE, ("MAINTENANCE",)),
        (("alloc",), NodeState.ALLOCATED, ()),
        (("IDLE+MAINTENANCE+RESERVED",), NodeState.IDLE, ("MAINTENANCE", "RESERVED")),
        (("IDLE+NEW_FLAG",), NodeState.IDLE, ("NEW_FLAG",)),
        (("inval",), NodeState.UNKNOWN, ("INVALID_REG",)),
        (("SOMETHING",), NodeState.UNKNOWN, ("SOMETHING",)),
    ],
)
def test_parse_node_state(words: tuple[str, ...], state: NodeState, flags: tuple[str, ...]) -> None:
    assert parse_node_state(*words) == (state, flags)


@pytest.mark.parametrize(
    ("availability", "words"),
    [
        ("open", "idle mixed allocated idle~ completing planned reserved newer_state"),
        ("drained", "drained draining drained$ maint reboot idle@ mixed^"),
        ("down", "down down* idle* unknown unk* fail failing inval error drained*"),
    ],
)
def test_which_nodes_get_new_jobs(availability: str, words: str) -> None:
    states = words.split()
    assert {state: node_availability(state) for state in states} == dict.fromkeys(
        states, NodeAvailability(availability)
    )


@given(st.lists(st.text(max_size=20), max_size=4))
def test_never_crashes(words: list[str]) -> None:
    parse_job_state(*words)
    parse_node_state(*words)
