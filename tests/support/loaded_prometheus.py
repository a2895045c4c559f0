"""A private Prometheus with the series of a cluster that runs a thousand jobs.

Every metric of the exporter's table, for jobs on nodes of four GPUs each, written into blocks
with `promtool tsdb create-blocks-from openmetrics`. Counters of nodes and owners reach two hours
back, as the rules over an hour need; what only has to be there now reaches back a quarter.
"""

import itertools
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from carme.local import monitoring
from carme_monitoring.metrics import TABLE, Metric
from support.ports import free_port

GPUS_PER_NODE = 4
STEP_SECONDS = 60
_LONG, _SHORT = 2 * 3600 + 600, 1200
_USERS, _ACCOUNTS = 100, 10
_VALUES = {
    "component": ("gpu", "cpu", "dram", "rest"),
    "consumer": ("jobs", "unallocated", "system"),
    "currency": ("EUR",),
    "mode": ("user", "system"),
    "direction": ("receive", "send"),
    "collector": ("gpu", "host", "cgroup", "power"),
    "state": ("allocated", "idle", "running", "pending"),
    "clock": ("graphics", "sm", "memory", "video"),
    "kind": ("corrected", "uncorrected"),
    "percentile": ("50", "90", "99"),
    "scheduler": ("main", "backfill"),
    "statistic": ("last", "mean", "max"),
    "reason": ("Priority", "thermal"),
    "partition": ("gpu",),
    "mountpoint": ("/", "/tmp"),
    "signal": ("gpu", "send"),
}


def _owner(job: int) -> dict[str, str]:
    user = job % _USERS
    return {"user": f"user{user}", "account": f"account{user % _ACCOUNTS}", "partition": "gpu"}


def _where(metric: Metric, jobs: int) -> Iterator[dict[str, str]]:
    """The labels that say what it is about, a dictionary for each thing."""
    nodes = range(0, jobs, GPUS_PER_NODE)
    names = set(metric.labels)
    if metric.group.startswith("Cluster"):
        whose = names & {"user", "account"}
        if "jobid" in names:
            return  # only jobs about to end have it
        for user in range(_USERS) if whose else (None,):
            who = {k: v for k, v in _owner(user or 0).items() if k in whose}
            yield {"instance": "controller", "job": "carme-controller", **who}
        return
    for first in nodes:
        node = f"node{first // GPUS_PER_NODE}"
        target = {"instance": node, "job": "carme", "node": node}
        for job in range(first, min(first + GPUS_PER_NODE, jobs)):
            labels = dict(target)
            if "jobid" in names:
                labels["jobid"] = str(1000 + job)
            if "user" in names:
                labels |= _owner(job)
            if "uuid" in names:
                labels |= {"gpu": str(job - first), "uuid": f"GPU-{job}"}
            yield labels
            if not names & {"jobid", "user", "uuid"}:
                break


def series(jobs: int) -> Iterator[tuple[Metric, str]]:
    """Every series as text, without its value."""
    for metric in TABLE:
        for where in _where(metric, jobs):
            rest = [name for name in metric.labels if name not in where]
            choices = [_VALUES.get(name, ("x",)) for name in rest]
            for values in itertools.product(*choices):
                labels = {"cluster": "load", **where, **dict(zip(rest, values, strict=True))}
                inner = ",".join(f'{name}="{value}"' for name, value in labels.items())
                yield metric, f"{metric.name}{{{inner}}}"


def _value(metric: Metric, now: float) -> Callable[[float], str]:
    if metric.name.endswith("timestamp_seconds"):
        return lambda at: f"{now - 7200:.0f}"
    if metric.kind == "counter":
        return lambda at: f"{(at - now + _LONG) * 1.5:.1f}"
    if metric.kind == "info":
        return lambda at: "1"
    return lambda at: f"{0.5 + at % 60 / 1000:.3f}"


def _write(file: Path, jobs: int, now: float) -> int:
    every = [(text, _value(metric, now), _reach(metric)) for metric, text in series(jobs)]
    start = now - now % STEP_SECONDS
    with file.open("w", encoding="utf-8", buffering=1 << 20) as out:
        for back in range(_LONG, -1, -STEP_SECONDS):
            at = start - back
            out.writelines(f"{s} {value(at)} {at:.0f}\n" for s, value, far in every if far >= back)
        out.write("# EOF\n")
    return len(every)


def _reach(metric: Metric) -> int:
    is_rated = metric.kind == "counter" and not metric.is_per_job
    return _LONG if is_rated and metric.group in ("Energy", "Waste", "Owners") else _SHORT


@contextmanager
def loaded_prometheus(jobs: int = 1000, evaluate_seconds: int = 5) -> Iterator[str]:
    """The address of a Prometheus with these series, which evaluates Carme's rules on them.

    Its newest samples are from when it started: ask within five minutes.
    """
    for name in ("prometheus", "promtool"):
        if not shutil.which(name):
            raise SystemExit(f"needs {name}: apt-get install prometheus")
    with tempfile.TemporaryDirectory(prefix="carme-load-") as scratch:
        folder = Path(scratch)
        text = folder / "series.txt"
        _write(text, jobs, time.time())
        make = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(text)]
        subprocess.run([*make, str(folder / "data")], check=True, stdout=subprocess.DEVNULL)
        text.unlink()
        (folder / "rules").mkdir()
        for name in monitoring.RULES:
            rules = monitoring.rules(name).replace("interval: 1m", f"interval: {evaluate_seconds}s")
            (folder / "rules" / name).write_text(rules)
        config = folder / "prometheus.yml"
        config.write_text(
            f"global: {{evaluation_interval: {evaluate_seconds}s}}\nrule_files: [rules/*.yml]\n"
        )
        port = free_port()
        process = subprocess.Popen(
            [
                *("prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data"),
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "GOMAXPROCS": "2"},
        )
        url = f"http://127.0.0.1:{port}"
        try:
            _wait_ready(url, process)
            yield url
        finally:
            process.terminate()
            process.wait(30)


def _wait_ready(url: str, process: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError("the private Prometheus did not start")


def rule_durations(url: str, seconds: float = 120) -> dict[str, float]:
    """Milliseconds that each group of recording rules took: the best of five evaluations.

    The best, because whatever else the machine does only adds to it.
    """
    found: dict[str, list[float]] = {}
    seen: dict[str, float] = {}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        values = dict(line.rsplit(" ", 1) for line in lines if line.startswith("prometheus_rule_g"))
        for name, value in values.items():
            if "last_duration_seconds{" not in name or "recording.yml" not in name:
                continue
            group = name.partition(";")[2].partition('"')[0]
            stamp = float(values[name.replace("last_duration", "last_evaluation_timestamp")])
            if stamp > 0 and seen.get(group) != stamp:
                seen[group] = stamp
                found.setdefault(group, []).append(float(value) * 1000)
        if found and all(len(times) >= 5 for times in found.values()) and len(found) >= 3:
            break
        time.sleep(1)
    return {group: min(times) for group, times in found.items()}


def rules_eval_ms(jobs: int = 1000) -> float:
    """What one evaluation of all recording rules takes with the series of so many jobs."""
    with loaded_prometheus(jobs) as url:
        return sum(rule_durations(url).values())
