"""`./dev bench service`: the service under load from another process.

60 s (CARME_BENCH_SECONDS) of predictions at 50 a second, advice at 2 a second and 1,000-point
fronts one after the other, over HTTP, each request different. The service runs as on a cluster
(its web server, its pool of processes, SQLite), with a view that answers from a recorded cluster
and the hub's own token; no hub is asked, since its answers are kept for half a minute anyway.
"""

import argparse
import json
import multiprocessing
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import requests
import tomli_w

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.ports import free_port

SECONDS = float(os.environ.get("CARME_BENCH_SECONDS", "60"))
RATE, ADVICE_RATE = 50, 2
TOKEN = "bench-" + "t" * 32
HEADERS = {"Authorization": f"token {TOKEN}", "Carme-User": "bench"}
WORKLOADS = ("resnet-50", "bert-base", "vgg-19", "gpt-125m", "u-net", "alexnet")
GPUS = ("V100", "A100", "T4", "H100", "P100")


def serve_view(path):
    """Answers /snapshot as carme-view does, with one cluster."""
    from carme.slurm.models import Node, Partition
    from carme.slurm.snapshot import Snapshot
    from carme.slurm.states import NodeState

    nodes = tuple(
        Node(name=f"n{i}", state=NodeState.IDLE, partitions=("gpu",), cpus=64, memory_bytes=2**39,
             gpus={kind: 8})
        for i, kind in enumerate(("a100", "a100", "v100", "t4"))
    )  # fmt: skip
    partition = Partition(
        name="gpu", default=True, nodes=tuple(n.name for n in nodes), max_seconds=86400
    )
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            seen = Snapshot(taken_at=time.time(), partitions=(partition,), nodes=nodes)
            body = seen.model_dump_json().encode()
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            connection.sendall(head.encode() + body)


def prediction(rng):
    gpus = rng.choice((1, 2, 4, 8))
    plan = {"kind": "synchronous", "gpus": gpus, "batch": rng.randrange(8 * gpus, 512),
            "epochs": rng.uniform(1, 90)}  # fmt: skip
    hardware = {"gpus": f"{gpus}x{rng.choice(GPUS)}"}
    return {"workload": rng.choice(WORKLOADS), "hardware": hardware, "plan": plan}


def advice(rng):
    return {"partition": "gpu", "gpus": rng.choice((1, 2, 4)), "hours": rng.uniform(1, 24),
            "gpu_type": rng.choice(("a100", "v100", "t4")), "workload": rng.choice(WORKLOADS),
            "batch": rng.randrange(64, 512), "epochs": rng.uniform(1, 90)}  # fmt: skip


def pareto(rng):
    first = rng.randrange(64, 4096)
    return {"workload": rng.choice(WORKLOADS[:2]), "hardware": {"gpus": "8xV100"},
            "vary": {"gpus": [1, 2, 4, 8], "batch": list(range(first, first + 250))}}  # fmt: skip


class Load:
    """The other process: threads that ask at their times, whatever the answers take."""

    def __init__(self, api):
        self.api = api
        self.times = {"prediction": [], "advice": [], "pareto": []}
        self.errors = []
        self.lock = threading.Lock()
        self.end = time.monotonic() + SECONDS

    def ask(self, session, kind, path, body):
        begin = time.perf_counter()
        try:
            answer = session.post(f"{self.api}/{path}", json=body, timeout=30)
            seconds = time.perf_counter() - begin
            if answer.status_code not in (200, 202):
                raise RuntimeError(f"{answer.status_code} {answer.text[:200]}")
        except (requests.RequestException, RuntimeError) as error:
            with self.lock:
                self.errors.append(f"{kind}: {error}")
            return None
        with self.lock:
            if kind != "pareto":
                self.times[kind].append(seconds)
        return answer.json()

    def steady(self, kind, path, make_body, rate, seed):
        session, rng = requests.Session(), random.Random(seed)
        session.headers.update(HEADERS)
        at = time.monotonic() + rng.random() / rate
        while at < self.end:
            time.sleep(max(0.0, at - time.monotonic()))
            self.ask(session, kind, path, make_body(rng))
            at += 1 / rate

    def fronts(self):
        session, rng = requests.Session(), random.Random(7)
        session.headers.update(HEADERS)
        while time.monotonic() < self.end:
            begin = time.perf_counter()
            task = self.ask(session, "pareto", "pareto", pareto(rng))
            if task is None:
                continue
            with session.get(f"{self.api}/tasks/{task['id']}/events", stream=True) as events:
                for line in events.iter_lines():
                    if line.startswith(b"event: end"):
                        break
            done = session.get(f"{self.api}/tasks/{task['id']}", timeout=30).json()
            result = done["result"] or {"points": [], "impossible": 0}
            if len(result["points"]) + result["impossible"] != 1000:
                self.errors.append(f"pareto: {done['state']} {done['error']}")
            self.times["pareto"].append(time.perf_counter() - begin)
            time.sleep(5)

    def run(self):
        """8 threads share the predictions, so that one slow answer does not hold up the rest."""
        jobs = [
            threading.Thread(
                target=self.steady, args=("prediction", "predictions", prediction, RATE / 8, seed)
            )
            for seed in range(8)
        ]
        jobs.append(
            threading.Thread(target=self.steady, args=("advice", "advice", advice, ADVICE_RATE, 99))
        )
        jobs.append(threading.Thread(target=self.fronts))
        begin = time.monotonic()
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()
        return time.monotonic() - begin


def generate(api, queue):
    load = Load(api)
    seconds = load.run()
    queue.put((load.times, load.errors, seconds))


def wait_until_well(url, process):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if process.poll() is not None:
            sys.exit("the service did not start")
        try:
            if requests.get(url, timeout=2).status_code == 200:
                return
        except requests.RequestException:
            pass
        time.sleep(0.2)
    sys.exit("the service does not answer")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        view = f"{folder}/view.sock"
        answering = context.Process(target=serve_view, args=(view,), daemon=True)
        answering.start()
        port = free_port()
        config = {
            "view": {"socket": view},
            "service": {"port": port, "database": f"sqlite:///{folder}/service.sqlite"},
        }
        Path(f"{folder}/carme.toml").write_text(tomli_w.dumps(config))
        env = {
            **os.environ, "CARME_CONFIG": f"{folder}/carme.toml", "JUPYTERHUB_API_TOKEN": TOKEN,
        }  # fmt: skip
        program = str(Path(sys.executable).with_name("carme-service"))
        with Path(f"{folder}/log").open("w") as log:
            service = subprocess.Popen([program], env=env, stdout=log, stderr=log, cwd=folder)
        try:
            base = f"http://127.0.0.1:{port}/services/carme"
            wait_until_well(f"{base}/healthz", service)
            queue = context.Queue()
            loader = context.Process(target=generate, args=(f"{base}/api/v1", queue))
            loader.start()
            times, errors, seconds = queue.get(timeout=SECONDS + 120)
            loader.join()
        finally:
            service.terminate()
            service.wait(timeout=20)
            answering.terminate()
    figures = {
        "prediction_p50_ms": 1e3 * float(np.quantile(times["prediction"], 0.5)),
        "prediction_p99_ms": 1e3 * float(np.quantile(times["prediction"], 0.99)),
        "pareto_1000_points_seconds": float(np.median(times["pareto"])),
        "requests_per_second": sum(map(len, times.values())) / seconds,
        "errors": len(errors),
        "advice_p99_ms": 1e3 * float(np.quantile(times["advice"], 0.99)),
    }
    for error in errors[:5]:
        print(error, file=sys.stderr)
    print(
        json.dumps(figures) if as_json else "\n".join(f"{k}: {v:.4g}" for k, v in figures.items())
    )


if __name__ == "__main__":
    main()
