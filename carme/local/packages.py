"""What the cluster needs from Debian and npm: installs what is missing, and says what and why."""

import shutil
from collections.abc import Callable
from pathlib import Path

from carme.errors import UnavailableError
from carme.system.files import locked
from carme.system.programs import run

PROXY_VERSION = "5.3.0"
"""configurable-http-proxy, the proxy that JupyterHub is made for."""

PACKAGES = {
    "munge": "who is who between Slurm's daemons",
    "mariadb-server": "Slurm's accounting database",
    "slurm-client": "sbatch, squeue, sacctmgr",
    "slurmctld": "Slurm's controller",
    "slurmd": "Slurm on the nodes",
    "slurmdbd": "Slurm's accounting",
    "slurm-wlm-mysql-plugin": "slurmdbd's way to MariaDB",
    "slurmrestd": "Slurm's REST interface",
    "slurm-wlm-jwt-plugin": "slurmrestd's log-ins",
    "libpmix-dev": "srun --mpi=pmix: the plugin opens libpmix.so, which is in this package only",
    "prometheus": "keeps the measured series",
    "prometheus-alertmanager": "tells people about alerts",
    "sudo": "the hub acts for a user as that user",
    "gcc": "compiles the stand-in for NVIDIA's library",
    "libc6-dev": "compiles the stand-in for NVIDIA's library",
}
_POLICY = Path("/usr/sbin/policy-rc.d")
_LOCK = Path("/run/carme-packages.lock")

Say = Callable[[str], None]


def missing(packages: dict[str, str]) -> dict[str, str]:
    """Those of `packages` that are not installed."""
    listed = run(["dpkg-query", "-W", "-f", "${Package} ${db:Status-Abbrev}\n"])
    installed = {line.split()[0] for line in listed.splitlines() if line.split()[1:] == ["ii"]}
    return {name: why for name, why in packages.items() if name not in installed}


def install(packages: dict[str, str], say: Say, log: Path) -> bool:
    """Install what is missing of `packages`; True if there was anything.

    Debian starts what it installs. These servers are run here from configurations of their own, so
    the policy hook keeps the packages from starting them, for as long as the installation takes.
    """
    if not missing(packages):
        return False
    with locked(_LOCK):
        # Another cluster on this machine may have installed them while this one waited.
        wanted = missing(packages)
        if wanted:
            _install(wanted, say, log)
    return True


def _install(wanted: dict[str, str], say: Say, log: Path) -> None:
    for name, why in wanted.items():
        say(f"  {name}: {why}")
    own_policy = not _POLICY.exists()
    if own_policy:
        _POLICY.write_text("#!/bin/sh\nexit 101\n", encoding="ascii")
        _POLICY.chmod(0o755)
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        run(["apt-get", "-qq", "update"], env=env, timeout=300, log=log)
        run(
            ["apt-get", "-qq", "install", "-y", "--no-install-recommends", *wanted],
            env=env,
            timeout=1200,
            log=log,
        )
    finally:
        if own_policy:
            _POLICY.unlink()


def ensure_node(say: Say, log: Path) -> None:
    """Node.js and npm, the distribution's unless the machine has others."""
    absent = {
        package: "runs the proxy in front of the hub"
        for package, program in (("nodejs", "node"), ("npm", "npm"))
        if not shutil.which(program)
    }
    if absent:
        install(absent, say, log)


def proxy_program(cache: Path) -> Path:
    """Where the proxy's program is, or will be."""
    folder = cache / f"proxy-{PROXY_VERSION}"
    return folder / "node_modules/configurable-http-proxy/bin/configurable-http-proxy"


def ensure_proxy(cache: Path, say: Say, log: Path) -> Path:
    """The proxy's program, installed once from npm into the cache."""
    program = proxy_program(cache)
    if program.exists():
        return program
    ensure_node(say, log)
    with locked(cache / ".proxy.lock"):
        if not program.exists():  # another cluster may have installed it meanwhile
            _install_proxy(cache, say, log)
    return program


def _install_proxy(cache: Path, say: Say, log: Path) -> None:
    folder = cache / f"proxy-{PROXY_VERSION}"
    say(f"  configurable-http-proxy {PROXY_VERSION} from npm: the proxy in front of the hub")
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    argv = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(partial)]
    run([*argv, f"configurable-http-proxy@{PROXY_VERSION}"], timeout=600, log=log)
    partial.rename(folder)
    if not proxy_program(cache).exists():
        raise UnavailableError(f"npm did not install {proxy_program(cache)}", f"see {log}")
