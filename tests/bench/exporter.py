"""`./dev bench exporter [--json]`: what the exporter costs, and how right it is.

Rendering: 100,000 series of the exporter's own families, every value changed between renders,
against prometheus-client's encoder on the same samples; the parsed outputs are compared.
A node: the real `carme-exporter` with 8 virtual GPUs and 64 jobs on a made-up cgroup tree; jobs
come and go through the real prolog hook. No cluster, no root.
"""

import base64
import gc
import http.client
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from carme.local import vgpu
from carme.local.vgpu.commands import ask
from carme.node import hook
from carme_monitoring import webconfig
from carme_monitoring.metrics import Metric, Samples
from carme_monitoring.pipeline import TABLE
from carme_monitoring.render import Renderer
from support.ports import free_port

SERIES = 100_000
ROUNDS = 9
GPUS, JOBS = 8, 64
CPU_SECONDS = 45
SCRAPES = 300
ENERGY_SECONDS = 20


def main() -> None:
    """Print the figures; with --json as one object."""
    figures = {**bench_render(), **bench_node()}
    if "--json" in sys.argv:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:32} {value}")


# -- rendering ------------------------------------------------------------------------------


def bench_render() -> dict[str, float]:
    metrics = [metric for metric in TABLE if metric.is_per_job and metric.kind != "info"]
    samples = make_samples(metrics)
    renderer = Renderer(metrics)
    renderer.render(samples)
    carme_times, client_times = [], []
    carme_output = client_output = b""
    for _ in range(ROUNDS):
        change(samples, metrics)
        carme_output, seconds = timed(lambda: renderer.render(samples))
        carme_times.append(seconds)
        registry = client_registry(samples, metrics)
        client_output, seconds = timed(lambda registry=registry: generate_latest(registry))
        client_times.append(seconds)
    if parsed(carme_output) != parsed(client_output):
        raise SystemExit("the two outputs differ")
    render, client = statistics.median(carme_times), statistics.median(client_times)
    return {
        "series": len(samples),
        "render_ms": round(render * 1000, 1),
        "client_python_ms": round(client * 1000, 1),
        "ratio": round(client / render, 1),
    }


def make_samples(metrics: list[Metric]) -> Samples:
    """SERIES series, evenly over the per-job families, with values of each family's kind."""
    samples = Samples()
    for number in range(SERIES):
        metric = metrics[number % len(metrics)]
        job = number // len(metrics)
        label_values = {
            "jobid": str(1_000_000 + job),
            "node": f"gpu{job % 400:03}",
            "gpu": str(job % 8),
        }
        labels = tuple(
            label_values.get(label) or f"{label}-{job % 97:08x}" for label in metric.labels
        )
        samples.add(metric.name, labels, 0)
    change(samples, metrics)
    return samples


def change(samples: Samples, metrics: list[Metric]) -> None:
    """New values for all: whole bytes and counts, joules and seconds to the thousandth."""
    for metric in metrics:
        family = samples.families[metric.name]
        for labels in family:
            family[labels] = value_for(metric)


def value_for(metric: Metric) -> float:
    match metric.unit:
        case "bytes":
            return random.randrange(10**11)
        case "joules" | "seconds" | "grams":
            return random.randrange(10**9) / 1000
        case "ratio":
            return random.randrange(10**4) / 10**4
        case _:
            return random.randrange(1000)


def client_registry(samples: Samples, metrics: list[Metric]) -> CollectorRegistry:
    """The same samples as prometheus-client's families, ready to be encoded."""
    families = []
    for metric in metrics:
        kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        family = kind(metric.name, metric.help, labels=metric.labels)
        for labels, value in samples.families[metric.name].items():
            family.add_metric(labels, value)
        families.append(family)

    class Ready:
        def collect(self) -> list[Any]:
            return families

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Ready())
    return registry


def timed(call: Callable[[], bytes]) -> tuple[bytes, float]:
    gc.collect()
    gc.disable()
    began = time.perf_counter()
    result = call()
    seconds = time.perf_counter() - began
    gc.enable()
    return result, seconds


def parsed(text: bytes) -> dict[Any, float]:
    return {
        (sample.name, frozenset(sample.labels.items())): float(sample.value)
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


# -- a node ---------------------------------------------------------------------------------


def bench_node() -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="carme-bench-") as scratch:
        node = BusyNode(Path(scratch))
        try:
            node.start()
            return {
                **node.measure_cost(),
                "job_energy_max_error_percent": node.measure_energy(),
            }
        finally:
            node.stop()


class BusyNode:
    """A node of 8 GPUs and 64 jobs: GPU daemon and exporter as processes, jobs as folders."""

    def __init__(self, root: Path) -> None:
        self.root, self.run, self.state = root, root / "run", root / "vgpu"
        self.cgroup = root / "cgroup"
        self.port = free_port()
        self.processes: list[subprocess.Popen[bytes]] = []
        self.client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        self.jobs: dict[int, list[int]] = {}
        self.usage: dict[int, int] = {}
        self.ended: list[int] = []
        self._next = 1000
        self._stop = threading.Event()
        self.password = webconfig.write(root / "web.yml", "bench")
        (root / "carme.toml").write_text(
            '[[local.nodes]]\nname = "b1"\n'
            f'gpus = {{type = "virtual-a100", count = {GPUS}}}\n'
            '[[local.partitions]]\nname = "gpu"\nnodes = ["b1"]\n'
            "[exporter]\ninterval_seconds = 15\n"
        )
        self.library = vgpu.build_library(root / "cache")
        (self.run / "jobs").mkdir(parents=True)

    def start(self) -> None:
        config = self.root / "carme.toml"
        daemon = vgpu.daemon_command(self.state, self.run, config)
        self.spawn([*daemon, "--cgroup", str(self.cgroup)])
        wait(lambda: ask(self.run, {"health": True}))
        self.exporter = self.spawn(
            [
                *(sys.executable, "-c", "from carme_monitoring.commands import main; main()"),
                *("--config", str(config), "--node", "b1", "--port", str(self.port)),
                *("--web-config", str(self.root / "web.yml"), "--run", str(self.run)),
                *("--state", str(self.root / "state"), "--cgroup-root", str(self.cgroup)),
            ],
            vgpu.environment(self.library, self.state, "b1"),
        )
        wait(lambda: self.scrape())
        threading.Thread(target=self.burn, daemon=True).start()
        for number in range(JOBS):
            self.begin([number] if number < GPUS else [])

    def spawn(self, command: list[str], env: dict[str, str] | None = None) -> Any:
        process = subprocess.Popen(
            command, env={**os.environ, **(env or {})}, stderr=subprocess.DEVNULL
        )
        self.processes.append(process)
        return process

    def stop(self) -> None:
        self._stop.set()
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(10)

    def begin(self, gpus: list[int]) -> int:
        jobid, self._next = self._next, self._next + 1
        for controller in ("cpuacct", "memory", "cpuset", "pids"):
            (self.cgroup / controller / f"slurm_b1/uid_1000/job_{jobid}/step_0").mkdir(parents=True)
        memory = self.cgroup / f"memory/slurm_b1/uid_1000/job_{jobid}"
        (memory / "memory.stat").write_text("total_rss 1000000000\n")
        (memory / "memory.limit_in_bytes").write_text("4000000000\n")
        (memory / "memory.max_usage_in_bytes").write_text("2000000000\n")
        (self.cgroup / f"cpuset/slurm_b1/uid_1000/job_{jobid}/cpuset.cpus").write_text("0\n")
        self.usage[jobid] = 0
        self.write_usage(jobid)
        self.hook("prolog", jobid, gpus)
        self.jobs[jobid] = gpus
        return jobid

    def end(self, jobid: int) -> None:
        gpus = self.jobs.pop(jobid)
        self.hook("epilog", jobid, gpus)
        for controller in self.cgroup.iterdir():
            shutil.rmtree(controller / f"slurm_b1/uid_1000/job_{jobid}", ignore_errors=True)
        if gpus:
            self.ended.append(jobid)

    def hook(self, event: str, jobid: int, gpus: list[int]) -> None:
        env = {
            "SLURM_JOB_ID": str(jobid),
            "SLURM_JOB_UID": "1000",
            "SLURM_JOB_USER": f"user{jobid % 20}",
            "SLURMD_NODENAME": "b1",
            "SLURM_JOB_CPUS_PER_NODE": "1",
            "SLURM_JOB_GPUS": ",".join(map(str, gpus)),
            **vgpu.environment(self.library, self.state, "b1"),
        }
        command = [sys.executable, "-I", "-S", hook.__file__, event, str(self.run)]
        subprocess.run(command, env=env, check=True, timeout=20)

    def burn(self) -> None:
        """Jobs use their processor in bursts, each in its own rhythm."""
        last = time.monotonic()
        while not self._stop.wait(0.05):
            now = time.monotonic()
            for jobid in list(self.jobs):
                if (now * (1 + jobid % 5) / 3) % 1 < 0.6:
                    self.usage[jobid] += round((now - last) * 1e9 * (0.3 + jobid % 7 / 10))
                    self.write_usage(jobid)
            last = now

    def write_usage(self, jobid: int) -> None:
        folder = self.cgroup / f"cpuacct/slurm_b1/uid_1000/job_{jobid}"
        try:
            (folder / "usage.new").write_text(f"{self.usage[jobid]}\n")
            (folder / "usage.new").replace(folder / "cpuacct.usage")
        except OSError:  # the job has just ended
            return

    def scrape(self) -> bytes:
        """As Prometheus does: one connection, kept open."""
        token = base64.b64encode(f"bench:{self.password}".encode()).decode()
        headers = {"Authorization": f"Basic {token}", "Accept-Encoding": "gzip"}
        try:
            self.client.request("GET", "/metrics", headers=headers)
            answer = self.client.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException):
            self.client.close()
            raise
        if answer.status != 200:
            raise OSError(f"HTTP {answer.status}")
        return body

    def measure_cost(self) -> dict[str, float]:
        process = psutil.Process(self.exporter.pid)
        time.sleep(2)
        cpu_before, began = sum(process.cpu_times()[:2]), time.monotonic()
        while time.monotonic() - began < CPU_SECONDS:
            self.scrape()
            time.sleep(15)
        seconds = time.monotonic() - began
        used = sum(process.cpu_times()[:2]) - cpu_before
        times = []
        for _ in range(SCRAPES):
            start = time.perf_counter()
            self.scrape()
            times.append(time.perf_counter() - start)
            time.sleep(0.005)
        return {
            "scrape_p99_ms": round(sorted(times)[int(len(times) * 0.99)] * 1000, 2),
            "rss_mb": round(process.memory_info().rss / 1e6, 1),
            "cpu_percent_at_15s": round(used / seconds * 100, 3),
        }

    def measure_energy(self) -> float:
        """GPU jobs come and go; the worst difference from the cards' own record, in percent."""
        deadline = time.monotonic() + ENERGY_SECONDS
        source = random.Random(1)
        while time.monotonic() < deadline:
            jobid = source.choice([job for job, gpus in self.jobs.items() if gpus])
            gpus = self.jobs[jobid]
            self.end(jobid)
            self.begin(gpus)
            time.sleep(source.uniform(0.1, 1.5))
        time.sleep(17)
        recorded: dict[int, float] = {}
        for span in ask(self.run, {"record": True})["ended"]:  # type: ignore[attr-defined]
            if span["jobid"]:
                recorded[span["jobid"]] = recorded.get(span["jobid"], 0.0) + span["joules"]
        charged = {
            int(dict(labels)["jobid"]): value
            for (name, labels), value in parsed_gzip(self.scrape()).items()
            if name == "carme_job_energy_joules_total" and ("component", "gpu") in labels
        }
        errors = [
            abs(charged.get(jobid, 0.0) - recorded[jobid]) / recorded[jobid] * 100
            for jobid in self.ended
        ]
        return round(max(errors), 3)


def parsed_gzip(body: bytes) -> dict[Any, float]:
    import gzip

    return parsed(gzip.decompress(body))


def wait(check: Callable[[], Any], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            check()
        except Exception:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
        else:
            return


if __name__ == "__main__":
    main()
