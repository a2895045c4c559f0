"""Packages from Debian and npm that the cluster needs; installs missing ones and says why."""

import shutil
from pathlib import Path

from carme.errors import UnavailableError
from carme.system.files import locked
from carme.system.programs import ProgressCallback, run

PROXY_VERSION = "5.3.0"
"""Of configurable-http-proxy, JupyterHub's default proxy."""

PACKAGES = {
    "munge": "authenticates Slurm's daemons and users",
    "mariadb-server": "Slurm's accounting database",
    "slurm-client": "sbatch, squeue, sacctmgr",
    "slurmctld": "Slurm's controller",
    "slurmd": "Slurm on the nodes",
    "slurmdbd": "Slurm's accounting",
    "slurm-wlm-mysql-plugin": "slurmdbd's connection to MariaDB",
    "slurmrestd": "Slurm's REST interface",
    "slurm-wlm-jwt-plugin": "slurmrestd's authentication",
    "libpmix-dev": "srun --mpi=pmix: the plugin opens libpmix.so, which is in this package only",
    "prometheus": "stores metrics",
    "prometheus-alertmanager": "sends alerts",
    "sudo": "the hub acts for a user as that user",
    "gcc": "compiles the stand-in for NVIDIA's library",
    "libc6-dev": "compiles the stand-in for NVIDIA's library",
}
_POLICY = Path("/usr/sbin/policy-rc.d")
_LOCK = Path("/run/carme-packages.lock")


def missing(packages: dict[str, str]) -> dict[str, str]:
    """Those of `packages` that are not installed."""
    listed = run(["dpkg-query", "-W", "-f", "${Package} ${db:Status-Abbrev}\n"])
    installed = {line.split()[0] for line in listed.splitlines() if line.split()[1:] == ["ii"]}
    return {name: why for name, why in packages.items() if name not in installed}


def install(packages: dict[str, str], progress: ProgressCallback, log: Path) -> bool:
    """Install those of `packages` that are missing; True if there were any.

    Debian starts services on installation. The cluster starts them itself, with its own
    configuration, so a policy-rc.d prevents that during the installation.
    """
    if not missing(packages):
        return False
    with locked(_LOCK):
        # Another cluster on this machine may have installed them in the meantime.
        if still_missing := missing(packages):
            _install(still_missing, progress, log)
    return True


def _install(packages: dict[str, str], progress: ProgressCallback, log: Path) -> None:
    for name, why in packages.items():
        progress(f"  {name}: {why}")
    own_policy = not _POLICY.exists()
    if own_policy:
        _POLICY.write_text("#!/bin/sh\nexit 101\n", encoding="ascii")
        _POLICY.chmod(0o755)
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        run(["apt-get", "-qq", "update"], added_env=env, timeout_seconds=300, log=log)
        argv = ["apt-get", "-qq", "install", "-y", "--no-install-recommends", *packages]
        run(argv, added_env=env, timeout_seconds=1200, log=log)
    finally:
        if own_policy:
            _POLICY.unlink()


def proxy_program(cache: Path) -> Path:
    """The path of the proxy's program, installed or not."""
    folder = cache / f"proxy-{PROXY_VERSION}"
    return folder / "node_modules/configurable-http-proxy/bin/configurable-http-proxy"


def ensure_proxy(cache: Path, progress: ProgressCallback, log: Path) -> Path:
    """The proxy's program, installed once from npm into the cache."""
    program = proxy_program(cache)
    if program.exists():
        return program
    # Any Node.js on this machine will do.
    absent = {
        package: "runs the proxy in front of the hub"
        for package, name in (("nodejs", "node"), ("npm", "npm"))
        if not shutil.which(name)
    }
    if absent:
        install(absent, progress, log)
    with locked(cache / ".proxy.lock"):
        if not program.exists():  # another cluster may have installed it in the meantime
            _install_proxy(cache, progress, log)
    return program


def _install_proxy(cache: Path, progress: ProgressCallback, log: Path) -> None:
    folder = cache / f"proxy-{PROXY_VERSION}"
    progress(f"  configurable-http-proxy {PROXY_VERSION} from npm: the proxy in front of the hub")
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    argv = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(partial)]
    run([*argv, f"configurable-http-proxy@{PROXY_VERSION}"], timeout_seconds=600, log=log)
    partial.rename(folder)
    if not proxy_program(cache).exists():
        raise UnavailableError(f"npm did not install {proxy_program(cache)}", f"see {log}")
