"""Whatever Slurm prints, parsers answer: broken lines, wrong types, foreign bytes."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from carme.slurm import parse
from support.slurm_samples import (
    ASSOCIATIONS,
    CONFIG,
    HEADER,
    NEW_JOB,
    NODES,
    OLD_JOB,
    PARTITIONS,
    PENDING,
    QOS_24,
    RESERVATIONS,
    ROWS,
    RUNNING,
    SEPARATOR,
    printed,
)

ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
KEYS = sorted({*OLD_JOB, "state", "state_flags", "gres", "gres_used", "features", "partitions",
               "maximums", "defaults", "nodes", "accounts", "time", "array", "tres", "steps",
               "start_time", "users", "flags", "alloc_cpus", "real_memory"})  # fmt: skip


@st.composite
def mangled(draw: st.DrawFn, text: str) -> str:
    """`text` with a few pieces cut out, doubled or replaced."""
    raw = bytearray(text.encode())
    for _ in range(draw(st.integers(0, 6))):
        start = draw(st.integers(0, len(raw)))
        end = min(len(raw), start + draw(st.integers(0, 30)))
        raw[start:end] = draw(st.binary(max_size=12) | st.just(bytes(raw[start:end]) * 2))
    return bytes(raw).decode("utf-8", errors="replace")


@given(mangled(NODES + PARTITIONS + RESERVATIONS))
def test_scontrol(text: str) -> None:
    parse.parse_nodes(text)
    parse.parse_partitions(text)
    parse.parse_reservations(text)
    parse.parse_test_only(text, 0)


@given(mangled(printed(RUNNING, PENDING)))
def test_squeue(text: str) -> None:
    parse.parse_squeue(text, SEPARATOR)


@given(mangled(ASSOCIATIONS + QOS_24 + CONFIG))
def test_sacctmgr(text: str) -> None:
    parse.parse_associations(text)
    parse.parse_qos(text)
    parse.parse_default_accounts(text)
    parse.parse_accounting(text)


@given(mangled(f"{HEADER}\n{ROWS}\n"))
def test_sacct(text: str) -> None:
    parse.parse_sacct(text)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(ANY | st.lists(st.dictionaries(st.sampled_from(KEYS), ANY, max_size=8), max_size=2))
def test_json(value: Any) -> None:
    for name, one in (("job_id", 1), ("name", "n")):
        items = [{**item, name: one} if isinstance(item, dict) else item for item in _list(value)]
        for key, read in READERS.items():
            read({key: items})
            read({key: value})
            read(value)


@given(st.sampled_from(sorted(NEW_JOB)), ANY)
def test_one_wrong_field_costs_only_itself(key: str, value: Any) -> None:
    (job,) = parse.parse_json_jobs({"jobs": [{**NEW_JOB, key: value, "job_id": 4}]})
    assert job.id == 4


READERS = {
    "jobs": lambda answer: (parse.parse_json_jobs(answer), parse.parse_slurmdb_jobs(answer)),
    "nodes": parse.parse_json_nodes,
    "partitions": parse.parse_json_partitions,
    "reservations": parse.parse_json_reservations,
    "errors": parse.answer_errors,
    "meta": parse.answer_version,
}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
