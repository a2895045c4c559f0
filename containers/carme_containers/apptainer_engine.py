"""Building with Apptainer, rootless: the definition file becomes a SIF file."""

import re
import subprocess
from pathlib import Path

from carme.errors import MissingError, UnavailableError
from carme_containers.build_environment import BuildEnvironment, prepare
from carme_containers.build_log import BuildLog
from carme_containers.build_user import PATH, BuildUser
from carme_containers.recipe import Recipe

# Starts like an unpacked image, and packs in seconds; a third larger than zstd, which unpacks in
# three times the time.
SQUASHFS = "-comp lz4 -b 64K"


class ApptainerEngine:
    """Runs `apptainer build` as the build user."""

    needs_parent_file = True

    def __init__(self, program: Path, mirror: str | None = None) -> None:
        self.program = program
        self.mirror = mirror

    @property
    def version(self) -> str:
        """`apptainer 1.4.5`."""
        command = [str(self.program), "version"]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        return f"{self.program.name} {run.stdout.strip() or 'of unknown version'}"

    def make(
        self, recipe: Recipe, parent: Path | None, folder: Path, log: BuildLog, user: BuildUser
    ) -> Path:
        """The SIF file of the recipe that was copied to `folder`/recipe."""
        definition = folder / "recipe/image.def"
        if not definition.is_file():
            raise MissingError(f"recipe {recipe.name}: {recipe.folder / 'image.def'} is missing")
        around = prepare(folder / "mnt", self.mirror)
        made = folder / "out" / recipe.file
        ours = {"MIRROR": around.mirror, **({"PARENT": str(parent)} if parent else {})}
        # Apptainer refuses arguments that a definition does not use.
        text = definition.read_text(encoding="utf-8", errors="replace")
        used = {key: ours[key] for key in ours if re.search(rf"{{{{\s*{key}\s*}}}}", text)}
        # A /tmp of its own: the build neither sees nor leaves anything in the machine's.
        options = ["--fakeroot", "--bind", f"{folder / 'scratch'}:/tmp"]
        for outside, inside in around.binds:
            options += ["--bind", f"{outside}:{inside}"]
        for key, value in {**recipe.arguments, **used}.items():
            options += ["--build-arg", f"{key}={value}"]
        self.run_build(options, "image.def", made, folder, around, log, user)
        return made

    def run_build(
        self,
        options: list[str],
        source: str,
        made: Path,
        folder: Path,
        around: BuildEnvironment | None,
        log: BuildLog,
        user: BuildUser,
    ) -> None:
        """`apptainer build` from anything that it accepts; an error says why it failed."""
        given = around.environment if around else {}
        environ = {
            "PATH": PATH,
            "LANG": "C.UTF-8",
            "HOME": str(folder / "home"),
            "APPTAINER_TMPDIR": str(folder / "tmp"),
            "APPTAINER_CACHEDIR": str(folder / "tmp"),
            **{key: value for key, value in given.items() if "proxy" in key.lower()},
            # What a recipe's script sees, without being in the recipe or in the finished image.
            **{f"APPTAINERENV_{key}": value for key, value in given.items()},
        }
        command = [str(self.program), "build", "--mksquashfs-args", SQUASHFS, *options]
        code = log.run([*command, str(made), source], environ, folder / "recipe", user)
        if code or not made.exists():
            message = f"{log.title} could not be built: {log.reason()}"
            raise UnavailableError(message, f"the log is {log.path}")
