"""A real training loop with tracked steps: a network in NumPy, data-parallel over processes.

    python train.py --run 2x128 --run 1x256 --rounds 10 --steps 2 --out steps.csv

Workers exchange gradients through shared memory: each reduces its slice, then all read the mean.
Every step's compute, communication and update are timed for `carme calibrate`: each begins when the
slowest worker has finished the previous phase, so that together they are the step.

Before the steps each worker computes and updates a few times while the others wait, with the batch
of the steps: `alone_compute` and `alone_update`. Runs alternate round by round, so that other
processes disturb all of them alike.
"""

import argparse
import csv
import multiprocessing as mp
import os
import time
from itertools import pairwise
from multiprocessing import shared_memory
from pathlib import Path

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"  # before NumPy: a worker is a core

import numpy as np  # noqa: E402

SIZES = (784, 1024, 1024, 512, 10)
WARM = 3
ALONE = 5


def shapes():
    return [*pairwise(SIZES)]


def count():
    return sum(a * b for a, b in shapes())


def views(flat):
    """The layers' matrices in one flat array."""
    matrices, begin = [], 0
    for a, b in shapes():
        matrices.append(flat[begin : begin + a * b].reshape(a, b))
        begin += a * b
    return matrices


def gradients(weights, into, x, labels):
    """Forward and backward pass of a batch."""
    activations = [x]
    for w in weights[:-1]:
        activations.append(np.maximum(activations[-1] @ w, 0))
    logits = activations[-1] @ weights[-1]
    logits -= logits.max(axis=1, keepdims=True)
    error = np.exp(logits)
    error /= error.sum(axis=1, keepdims=True)
    error[np.arange(len(labels)), labels] -= 1
    error /= len(labels)
    for index in range(len(weights) - 1, -1, -1):
        np.matmul(activations[index].T, error, out=into[index])
        if index:
            error = (error @ weights[index].T) * (activations[index] > 0)


def worker(rank, workers, batch, steps, names, barrier, results):
    blocks = [shared_memory.SharedMemory(name=name) for name in names]
    slots = [np.ndarray(count(), np.float32, buffer=block.buf) for block in blocks]
    mean, own_gradient = slots[-1], slots[rank]
    rng = np.random.default_rng(1)
    flat = rng.normal(0, 0.03, count()).astype(np.float32)
    weights, into = views(flat), views(own_gradient)
    momentum = np.zeros(count(), np.float32)
    share = batch // workers
    rng = np.random.default_rng(rank + 10)
    x = rng.normal(size=(share, SIZES[0])).astype(np.float32)
    labels = rng.integers(0, SIZES[-1], share)
    edges = np.linspace(0, count(), workers + 1).astype(int)
    gradient_slice = slice(edges[rank], edges[rank + 1])

    def update(gradient):
        nonlocal momentum, flat
        momentum *= 0.9
        momentum += gradient
        flat -= 0.01 * momentum

    initial = flat.copy()
    alone = []
    for active_rank in range(workers):
        for _ in range(WARM + ALONE if rank == active_rank and workers > 1 else 0):
            begin = time.perf_counter()
            gradients(weights, into, x, labels)
            computed = time.perf_counter()
            update(own_gradient)
            alone.append((computed - begin, time.perf_counter() - computed))
        barrier.wait()
    flat[:], momentum[:] = initial, 0  # workers begin alike
    rows = []
    for step in range(steps + WARM):
        barrier.wait()
        begin = time.perf_counter()
        gradients(weights, into, x, labels)
        computed = time.perf_counter()
        if workers > 1:
            barrier.wait()
            total = slots[0][gradient_slice] + slots[1][gradient_slice]
            for other in slots[2:workers]:
                total += other[gradient_slice]
            total /= workers
            mean[gradient_slice] = total
            barrier.wait()
            reduced = time.perf_counter()
        else:
            reduced = computed
        update(mean if workers > 1 else own_gradient)
        end = time.perf_counter()
        if step >= WARM:
            rows.append((end - begin, computed - begin, reduced - begin))
    results.put((np.array(rows), np.median(alone[WARM:], axis=0) if alone else ()))
    for slot in (into, own_gradient, mean, slots):
        del slot
    barrier.wait()


def train(workers, batch, steps):
    """Rows (seconds, compute, communication, update, alone…) of a number of steps."""
    context = mp.get_context("fork")
    parts = [shared_memory.SharedMemory(create=True, size=4 * count()) for _ in range(workers + 1)]
    names = [part.name for part in parts]
    barrier, results = context.Barrier(workers), context.Queue()
    processes = [
        context.Process(target=worker, args=(r, workers, batch, steps, names, barrier, results))
        for r in range(workers)
    ]
    for process in processes:
        process.start()
    reports = [results.get(timeout=240) for _ in processes]
    for process in processes:
        process.join()
    for part in parts:
        part.close()
        part.unlink()
    alone = np.mean([own for _, own in reports], axis=0)
    rows = []
    for seconds, computed, reduced in np.max([rows for rows, _ in reports], axis=0):
        rows.append((seconds, computed, reduced - computed, seconds - reduced, *alone))
    return rows


COLUMNS = ("batch", "gpus", "seconds", "compute", "communication", "update", "alone_compute",
           "alone_update")  # fmt: skip


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", action="append", required=True, metavar="WORKERSxBATCH")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=2, help="in a round")
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    with Path(options.out).open("w") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for _ in range(options.rounds):
            for run in options.run:
                workers, batch = (int(word) for word in run.split("x"))
                for row in train(workers, batch, options.steps):
                    writer.writerow([batch, workers, *(f"{value:.6f}" for value in row)])


if __name__ == "__main__":
    main()
