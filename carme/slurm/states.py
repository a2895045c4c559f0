"""The states of jobs and nodes; UNKNOWN stands for those of newer releases."""

from enum import StrEnum
from functools import lru_cache


class JobState(StrEnum):
    """A job's state as `squeue` shows it. UNKNOWN is a state of a newer release."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"
    BOOT_FAIL = "BOOT_FAIL"
    DEADLINE = "DEADLINE"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    # Flags on top of one of the states above; squeue shows the flag instead of the state.
    COMPLETING = "COMPLETING"
    CONFIGURING = "CONFIGURING"
    EXPEDITING = "EXPEDITING"
    LAUNCH_FAILED = "LAUNCH_FAILED"
    POWER_UP_NODE = "POWER_UP_NODE"
    RECONFIG_FAIL = "RECONFIG_FAIL"
    REQUEUED = "REQUEUED"
    REQUEUE_FED = "REQUEUE_FED"
    REQUEUE_HOLD = "REQUEUE_HOLD"
    RESIZING = "RESIZING"
    RESV_DEL_HOLD = "RESV_DEL_HOLD"
    REVOKED = "REVOKED"
    SIGNALING = "SIGNALING"
    SPECIAL_EXIT = "SPECIAL_EXIT"
    STAGE_OUT = "STAGE_OUT"
    STOPPED = "STOPPED"
    UPDATE_DB = "UPDATE_DB"
    UNKNOWN = "UNKNOWN"

    @property
    def waiting(self) -> bool:
        """Has no nodes yet, and may still run."""
        return self in _WAITING

    @property
    def active(self) -> bool:
        """Has its nodes and has not begun to end."""
        return self in _ACTIVE

    @property
    def ending(self) -> bool:
        """Its processes have ended, its nodes are being cleaned."""
        return self in _ENDING

    @property
    def ended(self) -> bool:
        """Over for good. False for UNKNOWN: a state of a newer release must not end a session."""
        return self in _ENDED


_WAITING = {
    JobState.PENDING,
    JobState.EXPEDITING,
    JobState.LAUNCH_FAILED,
    JobState.RECONFIG_FAIL,
    JobState.REQUEUED,
    JobState.REQUEUE_FED,
    JobState.REQUEUE_HOLD,
    JobState.RESV_DEL_HOLD,
    JobState.SPECIAL_EXIT,
}
_ACTIVE = {
    JobState.RUNNING,
    JobState.SUSPENDED,
    JobState.CONFIGURING,
    JobState.POWER_UP_NODE,
    JobState.RESIZING,
    JobState.SIGNALING,
    JobState.STOPPED,
}
_ENDING = {JobState.COMPLETING, JobState.STAGE_OUT, JobState.UPDATE_DB}
_ENDED = set(JobState) - _WAITING - _ACTIVE - _ENDING - {JobState.UNKNOWN}

# The states before the flags.
_BASE = tuple(JobState)[: list(JobState).index(JobState.COMPLETING)]
_SHORT = {
    "BF": JobState.BOOT_FAIL,
    "CA": JobState.CANCELLED,
    "CD": JobState.COMPLETED,
    "CF": JobState.CONFIGURING,
    "CG": JobState.COMPLETING,
    "DL": JobState.DEADLINE,
    "F": JobState.FAILED,
    "NF": JobState.NODE_FAIL,
    "OOM": JobState.OUT_OF_MEMORY,
    "PD": JobState.PENDING,
    "PR": JobState.PREEMPTED,
    "R": JobState.RUNNING,
    "RD": JobState.RESV_DEL_HOLD,
    "RF": JobState.REQUEUE_FED,
    "RH": JobState.REQUEUE_HOLD,
    "RQ": JobState.REQUEUED,
    "RS": JobState.RESIZING,
    "RV": JobState.REVOKED,
    "S": JobState.SUSPENDED,
    "SE": JobState.SPECIAL_EXIT,
    "SI": JobState.SIGNALING,
    "SO": JobState.STAGE_OUT,
    "ST": JobState.STOPPED,
    "TO": JobState.TIMEOUT,
}


def parse_job_state(*texts: str) -> JobState:
    """The state in `texts` (newer releases list state and flags); a flag wins, as in squeue."""
    states = [_job_state(text) for text in texts]
    flags = sorted(state for state in states if state not in (*_BASE, JobState.UNKNOWN))
    bases = (state for state in states if state is not JobState.UNKNOWN)
    return flags[0] if flags else next(bases, JobState.UNKNOWN)


def _job_state(text: str) -> JobState:
    # sacct writes `CANCELLED by 1001`, and `CANCELLE+` in a narrow column.
    name = text.upper().split()[0] if text.strip() else ""
    if name in JobState.__members__:
        return JobState[name]
    start = name.removesuffix("+")
    if start and start != name:
        return next((state for state in _BASE if state.startswith(start)), JobState.UNKNOWN)
    return _SHORT.get(name, JobState.UNKNOWN)


class NodeState(StrEnum):
    """A node's base state; DRAIN, PLANNED and the like are flags beside it."""

    IDLE = "IDLE"
    MIXED = "MIXED"
    ALLOCATED = "ALLOCATED"
    DOWN = "DOWN"
    ERROR = "ERROR"
    FUTURE = "FUTURE"
    UNKNOWN = "UNKNOWN"


class NodeAvailability(StrEnum):
    """Whether Slurm gives a node new jobs."""

    OPEN = "open"
    DRAINED = "drained"
    """Drained, in maintenance or waiting for a reboot: an admin closed it."""
    DOWN = "down"
    """Failed, not reachable, or with less hardware than slurm.conf declares."""


_NODE_SUFFIX = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}
# One name per flag: those of the commands, of sinfo and of each release's JSON differ.
_NODE_FLAG = {
    "MAINT": "MAINTENANCE",
    "RESV": "RESERVED",
    "COMP": "COMPLETING",
    "NO_RESPOND": "NOT_RESPONDING",
    "REBOOT": "REBOOT_REQUESTED",
    "PLND": "PLANNED",
    "POWER_DRAIN": "DRAIN",
    "INVAL": "INVALID_REG",
}
_NODE_WORD = {
    "ALLOC": (NodeState.ALLOCATED,),
    "MIX": (NodeState.MIXED,),
    "UNK": (NodeState.UNKNOWN,),
    "FUTR": (NodeState.FUTURE,),
    "ERR": (NodeState.ERROR,),
    "DRAINED": (NodeState.IDLE, "DRAIN"),
    "DRAINING": (NodeState.ALLOCATED, "DRAIN"),
    "DRNG": (NodeState.ALLOCATED, "DRAIN"),
    "FAILING": (NodeState.ALLOCATED, "FAIL"),
    "FAILG": (NodeState.ALLOCATED, "FAIL"),
}
_DOWN_FLAGS = {"FAIL", "INVALID_REG", "NOT_RESPONDING"}
_DRAINED_FLAGS = {"DRAIN", "MAINTENANCE", "REBOOT_ISSUED", "REBOOT_REQUESTED"}


@lru_cache(maxsize=1024)  # a thousand nodes are in a few states
def parse_node_state(*texts: str) -> tuple[NodeState, tuple[str, ...]]:
    """Base state and sorted flags in `texts`, such as `IDLE+DRAIN`, `mixed*` or two list items."""
    base: NodeState | None = None
    flags: set[str] = set()
    for word in "+".join(texts).upper().split("+"):
        core = word.strip()
        while core and core[-1] in _NODE_SUFFIX:
            flags.add(_NODE_SUFFIX[core[-1]])
            core = core[:-1]
        for part in _NODE_WORD.get(core, (core,)):
            if part in NodeState.__members__:
                base = base or NodeState[part]
            elif part:
                flags.add(_NODE_FLAG.get(part, part))
    if base is None and flags & {"DRAIN", "MAINTENANCE", "RESERVED", "PLANNED"}:
        base = NodeState.IDLE  # sinfo names only the flag of an idle node
    return base or NodeState.UNKNOWN, tuple(sorted(flags))


def node_availability(*texts: str) -> NodeAvailability:
    """Whether a node in the state `texts` gets new jobs; a state of a newer release counts as open.

    A reservation does not close a node: it may be the reader's own.
    """
    base, flags = parse_node_state(*texts)
    if base in (NodeState.DOWN, NodeState.ERROR) or _DOWN_FLAGS.intersection(flags):
        return NodeAvailability.DOWN
    if _DRAINED_FLAGS.intersection(flags):
        return NodeAvailability.DRAINED
    is_unknown = base is NodeState.UNKNOWN and not flags
    return NodeAvailability.DOWN if is_unknown else NodeAvailability.OPEN
