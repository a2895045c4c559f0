"""Builds a recipe into a SIF file with Apptainer, rootless, once for each content."""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from carme.errors import MissingError, UnavailableError
from carme.images import Built, Image, file_digest
from carme.units import format_bytes, format_duration
from carme_containers.builduser import PATH, BuildUser, build_user
from carme_containers.inside import Inside
from carme_containers.recipe import Recipe
from carme_containers.surroundings import prepare

Progress = Callable[[str], None]
# Reads three times as fast as gzip through FUSE, so sessions start sooner; level 3 packs quickly.
SQUASHFS = "-comp zstd -Xcompression-level 3"


@dataclass(frozen=True)
class Result:
    """A built image in the cache."""

    path: Path
    image: Image
    fresh: bool
    """Whether it was built now; false means it was there already."""


class Builder:
    """Builds below `cache`; everything there is kept by content, so nothing is built twice."""

    def __init__(
        self,
        apptainer: Path,
        cache: Path,
        progress: Progress,
        mirror: str | None = None,
    ) -> None:
        self.apptainer = apptainer
        self.images = cache / "images"
        self.work = cache / "build"
        self.logs = cache / "logs"
        self.progress = progress
        self.mirror = mirror

    def build(self, recipe: Recipe, force: bool = False) -> Result:
        """The image of `recipe`, its parents built before it; verified, or an error."""
        if not force and (ready := self.ready(recipe)):
            return ready
        parent = self.build(recipe.parent) if recipe.parent else None
        for folder in (self.images, self.work, self.logs):
            folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        with _locked(self.work / f"{recipe.file}.lock"):
            if not force and (ready := self.ready(recipe)):
                return ready  # another process built it while we waited
            check_space(self.work, recipe)
            return self._build(recipe, parent)

    def ready(self, recipe: Recipe) -> Result | None:
        """The image when the cache has it whole."""
        path = self.images / recipe.file
        try:
            image = Image.model_validate_json(path.with_suffix(".json").read_bytes())
            whole = path.stat().st_size == image.size_bytes
        except (OSError, ValueError):
            return None
        return Result(path, image, fresh=False) if whole else None

    def log(self, recipe: Recipe) -> Path:
        """Where the log of a build is."""
        return self.logs / f"image-{recipe.name}-{recipe.version}.log"

    def _build(self, recipe: Recipe, parent: Result | None) -> Result:
        started = time.monotonic()
        user = build_user()
        folder = self.work / f"{recipe.file}.{os.getpid()}"
        try:
            staged = self._stage(recipe, folder, user)
            made = staged / "out" / recipe.file
            self._make(recipe, parent, staged, made, user)
            seconds = round(time.monotonic() - started, 1)
            image = self._inspect(recipe, parent, made, user, seconds)
            return self._keep(recipe, made, image)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _stage(self, recipe: Recipe, folder: Path, user: BuildUser) -> Path:
        """A folder for this one build, with a copy of the recipe that its user can read."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        shutil.copytree(recipe.folder, folder / "recipe")
        for path in (folder / "recipe").rglob("*"):
            path.chmod(0o755 if path.is_dir() or path.name == "verify" else 0o644)
        for name in ("out", "tmp", "home"):
            (folder / name).mkdir()
            user.own(folder / name)
        return folder

    def _make(
        self, recipe: Recipe, parent: Result | None, folder: Path, made: Path, user: BuildUser
    ) -> None:
        if not (folder / "recipe/image.def").is_file():
            raise MissingError(f"recipe {recipe.name}: {recipe.folder / 'image.def'} is missing")
        around = prepare(folder / "mnt", self.mirror)
        command = [str(self.apptainer), "build", "--fakeroot", "--mksquashfs-args", SQUASHFS]
        for outside, inside in around.binds:
            command += ["--bind", f"{outside}:{inside}"]
        arguments = dict(recipe.arguments)
        if parent:
            arguments["PARENT"] = str(parent.path)
        else:
            arguments["MIRROR"] = around.mirror
        for key, value in arguments.items():
            command += ["--build-arg", f"{key}={value}"]
        command += [str(made), "image.def"]
        environ = {
            "PATH": PATH,
            "LANG": "C.UTF-8",
            "HOME": str(folder / "home"),
            "APPTAINER_TMPDIR": str(folder / "tmp"),
            "APPTAINER_CACHEDIR": str(folder / "tmp"),
            **{key: value for key, value in around.environment.items() if "proxy" in key.lower()},
            **{f"APPTAINERENV_{key}": value for key, value in around.environment.items()},
        }
        log = self.log(recipe)
        self.progress(f"{recipe.id}: building; log: {log}")
        code = self._follow(recipe, command, environ, folder / "recipe", log, user)
        if code or not made.exists():
            raise UnavailableError(
                f"{recipe.id} could not be built: {explain_log(log.read_text(errors='replace'))}",
                f"the log is {log}",
            )

    def _follow(
        self,
        recipe: Recipe,
        command: list[str],
        environ: dict[str, str],
        cwd: Path,
        log: Path,
        user: BuildUser,
    ) -> int:
        """Run a build, its output into `log` and its steps to the progress; stop it if we are."""
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=environ,
                cwd=cwd,
                start_new_session=True,
                **user.identity(),
            )
        except FileNotFoundError:
            raise MissingError(f"{command[0]} is not there") from None
        started = said_at = time.monotonic()
        said = ""
        try:
            with log.open("w", encoding="utf-8") as file:
                for line in process.stdout or ():
                    now = time.monotonic()
                    file.write(f"{now - started:6.1f} {line}")
                    file.flush()
                    step = build_step(line)
                    if step and step != said and (now - said_at > 2 or not said):
                        self.progress(f"{recipe.id}: {step}")
                        said, said_at = step, now
            return process.wait()
        finally:
            if process.poll() is None:
                _stop(process)
            if process.stdout:
                process.stdout.close()

    def _inspect(
        self, recipe: Recipe, parent: Result | None, made: Path, user: BuildUser, seconds: float
    ) -> Image:
        """Everything the index says about the new image; a failing `verify` is an error."""
        inside = Inside(self.apptainer, made, user, self.work)
        self.progress(f"{recipe.id}: verifying")
        verified = inside.verify()
        if not verified.passed:
            with self.log(recipe).open("a", encoding="utf-8") as file:
                file.write(f"\n--- verify ---\n{verified.output}\n")
            last = (verified.output.splitlines() or ["no message"])[-1]
            raise UnavailableError(
                f"{recipe.id} was built, but its verify fails: {last}",
                f"the log is {self.log(recipe)}",
            )
        manifest = recipe.manifest
        return Image(
            name=recipe.name,
            version=recipe.version,
            title=manifest.title,
            description=manifest.description,
            tags=manifest.tags,
            file=recipe.file,
            digest=file_digest(made),
            size_bytes=made.stat().st_size,
            recipe_hash=recipe.hash,
            labels=inside.labels(),
            applications=manifest.applications,
            gpu=manifest.gpu,
            hints=manifest.hints,
            built=Built(
                at=datetime.now(UTC).replace(microsecond=0),
                engine=apptainer_version(self.apptainer),
                seconds=seconds,
                arguments=recipe.arguments,
                parent=parent.image.digest if parent else None,
            ),
            verified=verified,
            packages=inside.packages(),
        )

    def _keep(self, recipe: Recipe, made: Path, image: Image) -> Result:
        """Move the finished image into the cache, the description last: it makes it valid."""
        path = self.images / recipe.file
        if os.geteuid() == 0:
            os.chown(made, 0, 0)
        made.chmod(0o644)
        made.replace(path)
        write_atomically(path.with_suffix(".json"), json.dumps(image.model_dump(mode="json")))
        spent = format_duration(image.built.seconds)
        self.progress(f"{recipe.id}: built in {spent}, {format_bytes(image.size_bytes)}")
        return Result(path, image, fresh=True)


def check_space(folder: Path, recipe: Recipe) -> None:
    """Refuse to start a build that would fill the disk."""
    need = recipe.manifest.disk_mb * 2**20
    free = shutil.disk_usage(folder).free
    if free < need:
        raise UnavailableError(
            f"{recipe.id} needs {format_bytes(need)} in {folder}, {format_bytes(free)} are free",
            "carme images prune, or set CARME_CACHE to a larger disk",
        )


def build_step(line: str) -> str:
    """What a line of a build's output tells a person; empty for most."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", line).strip()
    if found := re.match(r"INFO:\s+(Starting build|Running post|Creating SIF|Extracting)", text):
        return {"Starting build": "fetching"}.get(found[1], found[1].lower())
    if found := re.match(
        r"I: (Retrieving|Validating|Extracting|Unpacking|Configuring) (\S+)", text
    ):
        return f"{found[1].lower()} {found[2].rstrip('.')}"
    if found := re.match(r"(Collecting|Unpacking|Setting up) (\S+)", text):
        return f"{found[1].lower()} {found[2]}"
    if found := re.match(r"Step (\d+/\d+) :\s*(.{0,60})", text):
        return f"step {found[1]}: {found[2]}"
    return ""


def explain_log(text: str) -> str:
    """The line of a failed build's log that says why."""
    lines = [re.sub(r"\x1b\[[0-9;]*m|^ *\d+\.\d ", "", x).strip() for x in text.splitlines()]
    lines = [line for line in lines if line][-200:]
    telling = [line for line in lines if re.match(r"(E:|ERROR|error:|npm error|\w*Error:)", line)]
    last = [line for line in lines if line.startswith("FATAL")]
    return (telling or last or lines or ["it wrote nothing"])[-1][:300]


def apptainer_version(apptainer: Path) -> str:
    """`apptainer 1.4.5`."""
    run = subprocess.run([str(apptainer), "version"], capture_output=True, text=True, check=False)
    return f"{apptainer.name} {run.stdout.strip() or 'of unknown version'}"


def write_atomically(path: Path, text: str, mode: int = 0o644) -> None:
    """Readers see the old file or the new one, whole; a crash leaves the old one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.chmod(mode)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _stop(process: subprocess.Popen[str]) -> None:
    """End a build with all it started; Apptainer removes its own files when asked politely."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
            process.wait(20)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
        return
