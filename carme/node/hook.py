"""Slurm's prolog and epilog: record which job holds which GPUs, then notify the listeners.

    python3 -I -S hook.py prolog|epilog FOLDER [HUB]

Run by slurmd as root on the node, for every job. It uses the standard library only and imports
nothing of Carme, so that it starts in 40 ms from any Python. It never fails a job: it exits with 0
even after an error, and after LIMIT_SECONDS at the latest.

FOLDER/jobs/<node>.<jobid>.<restart>.json is the record, replaced as a whole. FOLDER/listen/*.sock
are the listeners, notified in the order of their names: virtual GPUs (`10-…`) change hands first,
then an exporter (`50-….<node>.sock`) reads its counters, so both see the same moment. If no
exporter answers, the hook reads the energy counters itself and keeps them in the record, which the
exporter charges when it is back.

HUB is the ADDRESS:PORT/PATH of the hub's API. The epilog tells it that a session is over, so that
the hub looks at Slurm now, and not seconds later.
"""

import contextlib
import json
import os
import re
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

LIMIT_SECONDS = 4.0
ANSWER_SECONDS = 1.0
NVML_SECONDS = 1.5
KEEP_SECONDS = 3600
"""How long the record of an ended job is kept, for an exporter that was away."""
MAX_SWEEP = 2000

Record = dict[str, Any]


def now() -> dict[str, Any]:
    """The wall clock, for people, and the boot clock, which is never set; in nanoseconds."""
    return {"time_ns": time.time_ns(), "boot_ns": time.clock_gettime_ns(time.CLOCK_BOOTTIME)}


def boot_id(proc: str = "/proc") -> str:
    """The id of this boot; `boot_ns` of another boot cannot be compared."""
    with contextlib.suppress(OSError), open(f"{proc}/sys/kernel/random/boot_id") as file:
        return file.read().strip()
    return ""


def gpu_indices(text: str | None) -> list[int]:
    """Slurm's GPU indices on this node: `0,1`, `0-3`, nothing."""
    indices: list[int] = []
    for part in filter(None, (text or "").split(",")):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if match:
            first, last = int(match[1]), int(match[2] or match[1])
            indices += range(first, min(last, first + 63) + 1)
    return indices


def cpus_per_node(text: str | None) -> int | None:
    """The number in `8` or `8(x2)`; None if nodes differ: Slurm does not say which is this one."""
    match = re.fullmatch(r"(\d+)(?:\(x\d+\))?", (text or "").strip())
    return int(match[1]) if match else None


def submission(comment: str) -> str:
    """The number in a job's comment by which the hub knows a session; empty for other jobs."""
    match = re.search(r"\bcarme-submission=([0-9a-f]{32})\b", comment)
    return match[1] if match else ""


def record_of(env: Mapping[str, str]) -> Record:
    """The job's record, from the environment that Slurm gives a prolog or epilog."""
    return {
        "version": 1,
        "node": re.sub(r"[^\w.-]", "_", env.get("SLURMD_NODENAME") or socket.gethostname()),
        "jobid": int(env["SLURM_JOB_ID"]),
        "restart": int(env.get("SLURM_JOB_RESTART_COUNT") or 0),
        "uid": int(env.get("SLURM_JOB_UID") or -1),
        "user": env.get("SLURM_JOB_USER", ""),
        "account": env.get("SLURM_JOB_ACCOUNT", ""),
        "partition": env.get("SLURM_JOB_PARTITION", ""),
        "sluid": env.get("SLURM_JOB_SLUID", ""),
        "gpus": gpu_indices(env.get("SLURM_JOB_GPUS") or env.get("CUDA_VISIBLE_DEVICES")),
        "cpus": cpus_per_node(env.get("SLURM_JOB_CPUS_PER_NODE")),
        "profile": "carme-profile" in re.split(r"[,\s]+", env.get("SLURM_JOB_COMMENT", "")),
        "submission": submission(env.get("SLURM_JOB_COMMENT", "")),
        "boot_id": boot_id(),
        "start": None,
        "end": None,
        "start_reading": None,
        "end_reading": None,
    }


def record_path(folder: str, record: Record) -> str:
    return f"{folder}/jobs/{record['node']}.{record['jobid']}.{record['restart']}.json"


def write(path: str, record: Record) -> None:
    """Replace the record as a whole; the folder's group (setgid) may read it, others not."""
    os.makedirs(os.path.dirname(path), mode=0o750, exist_ok=True)
    temporary = f"{path}.{os.getpid()}.new"
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640), "w") as file:
        json.dump(record, file)
    os.replace(temporary, path)


def update(event: str, folder: str, env: Mapping[str, str]) -> Record:
    """The job's record after `event`, written."""
    record = record_of(env)
    path = record_path(folder, record)
    with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
        earlier = json.load(file)
        if isinstance(earlier, dict) and earlier.get("boot_id") == record["boot_id"]:
            record = {**record, **earlier, "gpus": earlier.get("gpus") or record["gpus"]}
    if event == "prolog" and not record["start"]:
        record["start"] = now()
    if event == "epilog":
        record["end"] = record["end"] or now()
    write(path, record)
    return record


def notify(folder: str, event: str, record: Record) -> bool:
    """Notify the listeners; True if an exporter of this node has read its counters."""
    listen, has_reading = f"{folder}/listen", False
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = sorted(name for name in os.listdir(listen) if name.endswith(".sock"))
    message = json.dumps({"event": event, "node": record["node"], "jobid": record["jobid"]})
    for name in names:
        node = name.removesuffix(".sock").partition(".")[2]
        if node and node != record["node"]:
            continue
        with (
            contextlib.suppress(OSError, ValueError),
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client,
        ):
            client.settimeout(ANSWER_SECONDS)
            client.connect(f"{listen}/{name}")
            client.sendall(message.encode() + b"\n")
            answer = json.loads(client.recv(4096) or b"{}")
            has_reading = has_reading or bool(answer.get("reading"))
    return has_reading


def tell_hub(hub: str, record: Record) -> None:
    """Tell the hub that the job of a session is over; without an answer the hub finds out later."""
    address, _, path = hub.partition("/")
    host, _, port = address.rpartition(":")
    number = record.get("submission")
    if not number or not port:
        return
    request = (
        f"POST /{path}/carme/ended HTTP/1.0\r\nHost: {address}\r\n"
        f"Authorization: session {number}\r\nContent-Length: 0\r\n\r\n"
    )
    with (
        contextlib.suppress(OSError, ValueError),
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS) as client,
    ):
        client.sendall(request.encode())
        client.recv(1)


def nvml_energy_mj() -> dict[str, int]:
    """The energy counter of every GPU by UUID, from NVML through ctypes."""
    import ctypes

    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    if nvml.nvmlInit_v2():
        return {}
    count = ctypes.c_uint()
    energy_by_uuid: dict[str, int] = {}
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    for index in range(count.value):
        device, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(96)
        energy = ctypes.c_ulonglong()
        if (
            not nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device))
            and not nvml.nvmlDeviceGetUUID(device, uuid, 96)
            and not nvml.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(energy))
        ):
            energy_by_uuid[uuid.value.decode("ascii", "replace")] = energy.value
    return energy_by_uuid


def rapl_uj(sys_root: str = "/sys") -> dict[str, int]:
    """Every RAPL zone's counter by folder name."""
    base = f"{sys_root}/class/powercap"
    energy_by_zone: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for zone in os.listdir(base):
            with contextlib.suppress(OSError, ValueError), open(f"{base}/{zone}/energy_uj") as file:
                energy_by_zone[zone] = int(file.read())
    return energy_by_zone


def reading() -> Record | None:
    """The energy counters, read in a child process; None if it takes longer than NVML_SECONDS."""
    out, into = os.pipe()
    if os.fork() == 0:
        with contextlib.suppress(Exception):
            for fd in (0, 1, 2):
                os.close(fd)  # slurmd waits for these to be closed
            signal.alarm(0)
            nvml: dict[str, int] = {}
            with contextlib.suppress(OSError, AttributeError):  # no NVML here, or an old one
                nvml = nvml_energy_mj()
            os.write(into, json.dumps({**now(), "nvml_mj": nvml, "rapl_uj": rapl_uj()}).encode())
        os._exit(0)
    os.close(into)
    ready, _, _ = select.select([out], [], [], NVML_SECONDS)
    text = os.read(out, 65536) if ready else b""
    counters: Record | None = json.loads(text) if text else None
    return counters


def sweep(folder: str) -> None:
    """Remove records of jobs that ended long ago."""
    with contextlib.suppress(OSError):
        oldest = time.time() - KEEP_SECONDS
        for entry in list(os.scandir(f"{folder}/jobs"))[:MAX_SWEEP]:
            with contextlib.suppress(OSError, ValueError):
                if entry.stat().st_mtime < oldest:
                    with open(entry.path) as file:
                        ended = entry.name.endswith(".new") or json.load(file).get("end")
                    if ended:
                        os.unlink(entry.path)


def main(event: str, folder: str, hub: str = "") -> None:
    """Record the event, notify the listeners, and read the counters if no exporter did."""
    record = update(event, folder, os.environ)
    if not notify(folder, event, record):
        with contextlib.suppress(Exception):
            if counters := reading():
                field = "start_reading" if event == "prolog" else "end_reading"
                write(record_path(folder, record), {**record, field: counters})
    if event == "epilog":
        tell_hub(hub, record)
        sweep(folder)


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, LIMIT_SECONDS)
    try:
        main(*sys.argv[1:4])
    except BaseException as problem:  # no error may keep a job from starting or ending
        with contextlib.suppress(Exception):
            print(f"carme hook: {problem!r}", file=sys.stderr)
    os._exit(0)
