"""`./dev bench images`: how long an image takes to start, and an unchanged build to notice it.

Start is `import jupyterlab` by a new Python, in the container and outside it. Cold means that no
page of the image (or of the packages outside) is in memory; warm is the median of several runs.
"""

import argparse
import json
import os
import pwd
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from carme.errors import CarmeError
from carme.system.apptainer import find_or_install
from carme.system.files import cache_dir
from carme_containers.apptainer_engine import ApptainerEngine
from carme_containers.builder import Builder
from carme_containers.recipe import load_recipe

REPEATS = 7
IMPORT = "import jupyterlab"


def print_progress(text: str) -> None:
    print(text, file=sys.stderr)


def main() -> None:
    """Measure and print; with --json, only the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--image", default="base")
    options = parser.parse_args()
    apptainer = find_or_install(cache_dir(), print_progress)
    builder = Builder(ApptainerEngine(apptainer), apptainer, cache_dir(), print_progress)
    image = builder.build(load_recipe(options.image)).path
    # Not the configuration of a cluster that happens to run here.
    os.environ["CARME_CONFIG"] = "/dev/null"
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        home = Path(folder)
        home.chmod(0o755)
        contained = [str(apptainer), "exec", "--no-home", str(image), "python3", "-c", IMPORT]
        bare = bare_python(image, apptainer, home)
        drop_pages(image)
        cold = seconds(contained, home)
        warm, bare_warm = medians(contained, bare, home)
        figures = {
            "start_cold_seconds": cold,
            "start_warm_seconds": warm,
            "bare_start_warm_seconds": bare_warm,
            "rebuild_unchanged_seconds": rebuild_seconds(options.image),
        }
    rounded = {name: round(value, 3) for name, value in figures.items()}
    if options.json:
        print(json.dumps(rounded))
        return
    for name, value in rounded.items():
        print(f"{name:28} {value:7.3f} s")
    added = figures["start_warm_seconds"] - figures["bare_start_warm_seconds"]
    print(f"{'the container adds':28} {added:7.3f} s")


def bare_python(image: Path, apptainer: Path, home: Path) -> list[str]:
    """The same Python packages outside a container: the image's own, unpacked on this disk."""
    root = home / "root"
    command = [str(apptainer), "-s", "build", "--sandbox", str(root), str(image)]
    owner = pwd.getpwnam("nobody")
    os.chown(home, owner.pw_uid, owner.pw_gid)
    run_as_nobody(command, home)
    # Debian's own Python reads the packages of the image: nothing but the container differs.
    [packages] = (root / "opt/env/lib").glob("python3*/site-packages")
    python = f"import sys; sys.path.insert(0, {str(packages)!r}); {IMPORT}"
    return ["/usr/bin/python3", "-I", "-c", python]


def run_as_nobody(command: list[str], home: Path) -> None:
    """Run as a normal user, as sessions do; prints the output only if it fails."""
    nobody = pwd.getpwnam("nobody")
    root = os.geteuid() == 0
    run = subprocess.run(
        command,
        user=nobody.pw_uid if root else None,
        group=nobody.pw_gid if root else None,
        extra_groups=[] if root else None,
        env={"HOME": str(home), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
        cwd=home,
        capture_output=True,
        text=True,
    )
    if run.returncode:
        raise CarmeError(f"{command[0]} failed: {run.stderr.strip()[-500:]}")


def seconds(command: list[str], home: Path) -> float:
    """How long the command takes."""
    started = time.perf_counter()
    run_as_nobody(command, home)
    return time.perf_counter() - started


def medians(first: list[str], second: list[str], home: Path) -> tuple[float, float]:
    """How long both take when their files are in memory, in turn: a busy moment hits both."""
    seconds(second, home)
    pairs = [(seconds(first, home), seconds(second, home)) for _ in range(REPEATS)]
    return statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs)


def rebuild_seconds(name: str) -> float:
    """How long `carme images build` takes, as a person types it, when nothing has changed."""
    command = [sys.executable, "-m", "carme.cli", "images", "build", "--no-publish", name]
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        run = subprocess.run(command, capture_output=True, text=True)
        times.append(time.perf_counter() - started)
        if run.returncode or "unchanged" not in run.stdout:
            raise CarmeError(f"an unchanged recipe was built again: {run.stdout}{run.stderr}")
    return statistics.median(times)


def drop_pages(image: Path) -> None:
    """Put the image out of memory, as on a node that has not run it for a while."""
    with image.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    try:
        main()
    except CarmeError as error:
        sys.exit(f"bench: {error}")
