"""What jobs on this node are given and held to: GPUs and cgroups."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from carme.doctor import slurmconf
from carme.doctor.finding import Finding, Level, absent, fault, ok
from carme.doctor.finding import warning as warn
from carme.doctor.host_services import HostServices, is_virtual
from carme.doctor.slurm import read_conf
from carme.doctor.slurmconf import ConfiguredNode
from carme.errors import UnavailableError
from carme.system.gpus import read_gpus

_V1_NEEDS = {"freezer": "", "cpuacct": "", "memory": "constrainramspace",
             "cpuset": "constraincores", "devices": "constraindevices"}  # fmt: skip
"""Controllers, and the setting of cgroup.conf that needs them; Slurm needs the first anyway."""
_V2_NEEDS = {"cpu": "", "memory": "", "pids": "", "cpuset": "constraincores"}


_DRIVER = "nvidia-smi says what is wrong: the driver, or a GPU that fell off the bus"


def gpus(
    node: str,
    declared: int,
    found: int | None,
    why: str = "",
    missing: Sequence[str] = (),
    todo: str = _DRIVER,
) -> Finding:
    """GPUs that Slurm gives out, those that NVML shows (None: `why` it does not), and device files
    of gres.conf that are not there."""
    check = f"GPUs {node}"
    if missing:
        return fault(check, f"gres.conf names {', '.join(missing)}, which is not there", todo)
    if found is None:
        if not declared:
            return absent(check, "no GPU declared, and none found")
        return fault(check, f"Slurm gives out {declared}, but {why}", todo)
    if declared > found:
        return fault(check, f"Slurm gives out {declared}, NVML shows {found}", todo)
    if declared < found:
        more = "set slurm_gpus of this node in the inventory and run site.yml --tags slurm"
        return warn(check, f"NVML shows {found}, Slurm gives out {declared}", more)
    if not declared:
        return absent(check, "no GPU declared, and none found")
    return ok(check, f"{found} in NVML and in Slurm")


def read_gpus_of(site: HostServices, node: ConfiguredNode) -> Finding:
    files = slurmconf.device_files(read_conf(site, "gres.conf"), node.name)
    missing = [file for file in files if not Path(file).exists()]
    todo = _DRIVER
    if is_virtual(site.config):
        todo = f"{site.up} makes the stand-ins again"
        if not node.gpus:
            return absent(f"GPUs {node.name}", "no GPU declared")
    try:
        seen = read_gpus(_nvml_environment(site, node.name), seconds=15)
    except UnavailableError as error:
        return gpus(node.name, node.gpus, None, error.message, missing, todo)
    slots = sum(gpu.slices or 1 for gpu in seen)
    return gpus(node.name, node.gpus, slots, missing=missing, todo=todo)


def _nvml_environment(site: HostServices, node: str) -> Mapping[str, str]:
    """What the exporter of the node has: virtual GPUs are found through the library path."""
    given = site.config.session.environment
    if not is_virtual(site.config):
        return os.environ
    state = Path(given["CARME_VGPU_DIR"]) / f"{node}.state"
    library = {"LD_LIBRARY_PATH": given["LD_LIBRARY_PATH"], "CARME_VGPU_STATE": str(state)}
    return {**os.environ, **library}


def cgroups(settings: Mapping[str, str], root: Path = Path("/sys/fs/cgroup")) -> Finding:
    """cgroup.conf against what the kernel mounted below `root`."""
    plugin = settings.get("cgroupplugin", "autodetect").lower()
    controllers = root / "cgroup.controllers"
    has = "cgroup/v2" if controllers.exists() else "cgroup/v1"
    if plugin not in ("autodetect", has):
        todo = "set CgroupPlugin=autodetect in cgroup.conf (slurm_cgroup_plugin); restart slurmd"
        return fault("cgroups", f"cgroup.conf wants {plugin}, this host has {has}", todo)
    if has == "cgroup/v2":
        there = set(controllers.read_text(encoding="ascii").split())
        needs = _V2_NEEDS
    else:
        there = {name for name in _V1_NEEDS if (root / name).is_dir()}
        needs = _V1_NEEDS
    wanted = {n for n, key in needs.items() if not key or settings.get(key, "no").lower() == "yes"}
    if lacking := sorted(wanted - there):
        words = f"{has} without {', '.join(lacking)}, which cgroup.conf asks for"
        return fault(
            "cgroups", words, "boot a kernel that has them, or mount them below " + str(root)
        )
    closed = sorted(name for name in wanted if _is_read_only(root, name, has))
    if closed:
        words = f"{', '.join(closed)} mounted read-only below {root}: slurmd cannot hold jobs"
        return fault("cgroups", words, "mount -o remount,bind,rw on each; then restart slurmd")
    return ok("cgroups", f"{has} with {', '.join(sorted(wanted))}")


def read_cgroups(site: HostServices) -> Finding:
    if not site.slurm_path:
        if os.geteuid():
            return Finding("cgroups", Level.ROOT, "cgroup.conf is not for everybody here")
        todo = "slurmd fetches it from the controller: journalctl -u slurmd -n 50"
        return warn("cgroups", "no slurm.conf and no cgroup.conf found on this host", todo)
    return cgroups(slurmconf.settings(read_conf(site, "cgroup.conf")))


def _is_read_only(root: Path, controller: str, has: str) -> bool:
    place = root if has == "cgroup/v2" else root / controller
    return bool(os.statvfs(place).f_flag & os.ST_RDONLY)
