"""Checks of what sessions start from: images that are what was published, and containers."""

import os
import pwd
import time
from collections.abc import Sequence
from pathlib import Path

from carme.config import Config
from carme.doctor.finding import Finding, fault, ok, warning
from carme.doctor.host_services import HostServices
from carme.doctor.programs import as_user, call, person_in
from carme.images.catalogue import Image, check_file, file_stamp, read_index
from carme.images.own_image import find_apptainer

READING_SECONDS = 15.0
READING_BYTES = 4_000_000_000
"""What is read in full of images that look unchanged; a slow file server must not hold us up."""


def images(problems: Sequence[str], whole: int, unread: int, changed: Sequence[str]) -> Finding:
    """`whole`: checksum right; `unread`: as when they were published, by their dates; `changed`
    since, and there was no time to read them."""
    todo = "carme images list; build or publish again what is broken: carme images build NAME"
    if problems:
        more = f"; {whole + unread} others are whole" if whole + unread else ""
        return fault("images", "; ".join(problems) + more, todo)
    if changed:
        words = f"touched since they were published, too large to read here: {', '.join(changed)}"
        return warning("images", words, "carme images verify --quick")
    if not whole + unread:
        return fault("images", "none is published, so no session can start", todo)
    rest = f", {unread} unchanged since they were published" if unread else ""
    return ok("images", f"{whole} read in full, checksums right{rest}")


def read_images(site: HostServices, seconds: float = READING_SECONDS) -> Finding:
    settings = site.config.images
    if not settings.folder.is_dir():
        todo = "is the shared file system mounted? findmnt; site.yml --tags shared_storage,images"
        return fault("images", f"no folder {settings.folder}", todo)
    problems: list[str] = []
    changed: list[str] = []
    whole = unread = 0
    ends, room = time.monotonic() + seconds, READING_BYTES
    for image in published(settings.folder, touched_first=True):
        path = settings.folder / image.file
        problem = _looks_wrong(path, image, bool(settings.verify_key))
        if not problem and time.monotonic() < ends and image.size_bytes <= room:
            room -= image.size_bytes
            # Without its stamp the file is read: a disk can rot, and that changes no date.
            problem = check_file(path, image.model_copy(update={"stamp": ""}))
            whole += not problem
        elif not problem and _is_touched(path, image):
            changed.append(image.id)
        elif not problem:
            unread += 1
        if problem:
            problems.append(f"{image.id}: {problem}")
    return images(problems, whole, unread, changed)


def published(folder: Path, touched_first: bool = False) -> list[Image]:
    """The images that sessions may start from, small ones first."""
    found = [image for image in read_index(folder).images if image.state == "published"]
    if touched_first:
        return sorted(found, key=lambda i: (not _is_touched(folder / i.file, i), i.size_bytes))
    return sorted(found, key=lambda image: image.size_bytes)


def _is_touched(path: Path, image: Image) -> bool:
    try:
        return file_stamp(path) != image.stamp
    except OSError:
        return True


def _looks_wrong(path: Path, image: Image, require_signed: bool) -> str:
    """What shows without reading the file."""
    try:
        stamp = file_stamp(path)
    except OSError as error:
        return f"{path.name}: {error.strerror}"
    if require_signed and not image.signed_by:
        return "it is not signed, and images.verify_key demands it"
    return check_file(path, image.model_copy(update={"stamp": stamp}))


def container(code: int, said: str, image: str, user: str) -> Finding:
    """How a container with nothing to do ended."""
    if not code:
        return ok("container", f"{image} starts as {user}")
    todo = (
        "as that user: apptainer exec IMAGE true; is /dev/fuse there with mode 0666, and are user "
        "namespaces allowed (sysctl user.max_user_namespaces)?"
    )
    return fault("container", f"{image} does not start as {user}: {said}", todo)


def read_container(site: HostServices) -> Finding:
    """Started as a normal user, as sessions are; root could do what they cannot."""
    config = site.config
    program = find_apptainer(config.images.apptainer)
    if not program or not program.exists():
        words = f"no program {program}" if program else "neither apptainer nor singularity"
        return fault("container", words, "site.yml --tags apptainer; images.apptainer names it")
    folder = config.images.folder
    there = [i for i in published(folder) if not _looks_wrong(folder / i.file, i, False)]
    if not there:
        version = call([program, "version"]).out.strip()
        return warning("container", f"{program.name} {version}, but no image to try", "see images")
    image, path = there[0], folder / there[0].file
    argv: list[str | Path] = [program, "--quiet", "exec", "--containall", "--no-home", path, "true"]
    user, home = _who(config)
    env = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": home, "LC_ALL": "C.UTF-8"}
    done = call(as_user(user, argv) if os.geteuid() == 0 else argv, env=env, seconds=30)
    return container(done.code, done.last, image.id, user)


def _who(config: Config) -> tuple[str, str]:
    if os.geteuid():
        me = pwd.getpwuid(os.geteuid())
    else:
        me = pwd.getpwnam(person_in(config.hub.users_group) or "nobody")
    return me.pw_name, me.pw_dir
