"""Checks of what sessions start from: images that are what was published, and containers."""

import os
import pwd
import time
from collections.abc import Sequence
from pathlib import Path

from carme.config import Config
from carme.doctor import people
from carme.doctor.finding import Finding, fault, ok, warning
from carme.doctor.programs import as_user, call
from carme.doctor.site import Site
from carme.images import Catalogue, check_file, load_catalogue
from carme.ownimage import find_apptainer

_READING_SECONDS = 10.0
"""For reading images in full; the rest is judged by whether the file changed."""


def images(problems: Sequence[str], offered: int, read: int) -> Finding:
    """`read`: of how many the whole file was read and its checksum compared."""
    todo = "carme images list; build or publish again what is broken: carme images build NAME"
    if problems:
        more = f"; {offered} others are whole" if offered else ""
        return fault("images", "; ".join(problems) + more, todo)
    if not offered:
        return fault("images", "none is published, so no session can start", todo)
    rest = f", {offered - read} unchanged since they were published" if offered > read else ""
    return ok("images", f"{read} read in full, checksums right{rest}")


def read_images(site: Site) -> Finding:
    settings = site.config.images
    if not settings.folder.is_dir():
        todo = "is the shared file system mounted? findmnt; site.yml --tags shared_storage,images"
        return fault("images", f"no folder {settings.folder}", todo)
    catalogue = load_catalogue(settings.folder, bool(settings.verify_key))
    if not catalogue.index.images:
        return images((), 0, 0)
    broken, read = _read_in_full(catalogue, _READING_SECONDS)
    problems = [*catalogue.problems, *broken]
    return images(problems, len(catalogue.offered()) - len(broken), read)


def _read_in_full(catalogue: Catalogue, seconds: float) -> tuple[list[str], int]:
    """What is wrong with images that look unchanged, and how many of them there was time for."""
    ends = time.monotonic() + seconds
    broken, read = [], 0
    for image in sorted(catalogue.offered(), key=lambda image: image.size_bytes):
        if time.monotonic() > ends:
            break
        # Without its stamp the file is read: a disk can rot, and that changes no date.
        unmarked = image.model_copy(update={"stamp": ""})
        if problem := check_file(catalogue.path(image), unmarked):
            broken.append(f"{image.id}: {problem}")
        else:
            read += 1
    return broken, read


def container(code: int, said: str, image: str, user: str) -> Finding:
    """How a container with nothing to do ended."""
    if not code:
        return ok("container", f"{image} starts as {user}")
    todo = (
        "as that user: apptainer exec IMAGE true; is /dev/fuse there with mode 0666, and are user "
        "namespaces allowed (sysctl user.max_user_namespaces)?"
    )
    return fault("container", f"{image} does not start as {user}: {said}", todo)


def read_container(site: Site) -> Finding:
    """Started as a normal user, as sessions are; root could do what they cannot."""
    config = site.config
    program = find_apptainer(config.images.apptainer)
    if not program or not program.exists():
        words = f"no program {program}" if program else "neither apptainer nor singularity"
        return fault("container", words, "site.yml --tags apptainer; images.apptainer names it")
    whole = load_catalogue(config.images.folder).offered()
    if not whole:
        version = call([program, "version"]).out.strip()
        return warning("container", f"{program.name} {version}, but no image to try", "see images")
    image = min(whole, key=lambda image: image.size_bytes)
    path = config.images.folder / image.file
    argv: list[str | Path] = [program, "--quiet", "exec", "--containall", "--no-home", path, "true"]
    user, home = _who(config)
    env = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": home, "LC_ALL": "C.UTF-8"}
    done = call(as_user(user, argv) if os.geteuid() == 0 else argv, env=env, seconds=30)
    return container(done.code, done.last, image.id, user)


def _who(config: Config) -> tuple[str, str]:
    if os.geteuid():
        me = pwd.getpwuid(os.geteuid())
    else:
        me = pwd.getpwnam(people.somebody(config.hub.users_group) or "nobody")
    return me.pw_name, me.pw_dir
