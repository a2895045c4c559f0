"""`carme images`: build, check, publish and retire container images."""

import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from carme.config import Config, load
from carme.errors import CarmeError, InputError, MissingError, UnavailableError
from carme.images.catalogue import check_file, file_stamp, load_catalogue
from carme.images.own_image import check_own_image
from carme.system.files import cache_dir
from carme.system.programs import ProgressCallback, execute
from carme_containers import tables
from carme_containers.apptainer_engine import ApptainerEngine, ImageInspector, signer
from carme_containers.build_environment import build_user
from carme_containers.builder import Builder, Engine
from carme_containers.node_images import copy_images, files_in_use
from carme_containers.publisher import Publisher, apptainer_for, publish_result
from carme_containers.recipe import OWN_RECIPES, find_recipes, load_recipe

JOB_CPUS = 2
JOB_MEMORY = "4G"
JOB_MINUTES = 120


@click.group()
@click.option("--config", "path", type=click.Path(path_type=Path), help="Another carme.toml.")
@click.pass_context
def images(ctx: click.Context, path: Path | None) -> None:
    """Build, publish and check container images."""
    ctx.obj = load(path)


def print_progress(text: str) -> None:
    """Print progress to stderr; results go to stdout."""
    click.echo(text, err=True)


def _folders(config: Config) -> tuple[Path, ...]:
    return (OWN_RECIPES, *config.images.recipes)


def _builder(config: Config, engine: str, progress: ProgressCallback) -> Builder:
    cache = cache_dir()
    program = apptainer_for(config, cache, progress)
    apptainer = ApptainerEngine(program, config.images.debian_mirror)
    builds_with: Engine = apptainer
    if engine == "docker":
        # Docker's SDK is an optional dependency.
        from carme_containers.docker_engine import DockerEngine

        builds_with = DockerEngine(apptainer)
    return Builder(builds_with, program, cache, progress)


def _arguments(pairs: tuple[str, ...]) -> dict[str, str]:
    arguments = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"{pair!r} is not an argument", "write it like NAME=VALUE")
        arguments[key] = value
    return arguments


@images.command()
@click.argument("names", nargs=-1, required=True)
@click.option("--engine", type=click.Choice(["apptainer", "docker"]), default="apptainer")
@click.option("--variant", default="", help="Another image from the recipe, such as gpu.")
@click.option("--arg", "pairs", multiple=True, metavar="NAME=VALUE", help="A build argument.")
@click.option("--force", is_flag=True, help="Build even if nothing changed.")
@click.option("--publish/--no-publish", default=True, help="Publish what was built (default).")
@click.option("--slurm", is_flag=True, help="Build in a Slurm job and wait for it.")
@click.option("--partition", help="For --slurm.")
@click.option("--account", help="For --slurm.")
@click.pass_obj
def build(
    config: Config,
    names: tuple[str, ...],
    engine: str,
    variant: str,
    pairs: tuple[str, ...],
    force: bool,
    publish: bool,
    slurm: bool,
    partition: str | None,
    account: str | None,
) -> None:
    """Build the recipes NAMES and publish them; unchanged recipes are not built again."""
    arguments = _arguments(pairs)
    recipes = [
        load_recipe(name, _folders(config), variant=variant, arguments=arguments, engine=engine)
        for name in names
    ]
    if slurm:
        options = ["build", "--no-publish", f"--engine={engine}", f"--variant={variant}"]
        options += [f"--arg={pair}" for pair in pairs] + (["--force"] if force else [])
        build_in_job(config, [*options, *names], partition, account)
        force = False
    # When a scheduler or a service manager ends a build, it cleans up as after Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    open_private_tmp()
    builder = _builder(config, engine, print_progress)
    failed = []
    for recipe in recipes:
        try:
            result = builder.build(recipe, force)
        except CarmeError as error:
            # The others are still built; the image that is published stays in use.
            failed.append(recipe.id)
            click.secho(str(error), fg="red", err=True)
            continue
        state, image = "built" if result.is_new else "unchanged", result.image
        if publish:
            image = publish_result(config, builder.apptainer, result)
            state += ", published"
        click.echo(f"{recipe.id}: {state}, {image.digest}")
    if failed:
        raise UnavailableError(f"not built: {', '.join(failed)}; what was published stays in use")


@images.command("list")
@click.option("--all", "show_all", is_flag=True, help="Also retired images and unbuilt recipes.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.pass_obj
def list_images(config: Config, show_all: bool, as_json: bool) -> None:
    """List the published images."""
    catalogue = load_catalogue(config.images.folder, bool(config.images.verify_key))
    recipes = find_recipes(_folders(config)) if show_all else {}
    tables.print_catalogue(catalogue, show_all, recipes, as_json)


@images.command("show")
@click.argument("image")
@click.option("--packages", is_flag=True, help="Every package inside.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.pass_obj
def show_image(config: Config, image: str, packages: bool, as_json: bool) -> None:
    """Show the details of IMAGE (name or name:version)."""
    catalogue = load_catalogue(config.images.folder)
    tables.print_image(catalogue, catalogue.find(image), packages, as_json)


@images.command()
@click.argument("name")
@click.option("--variant", default="")
@click.option("--engine", type=click.Choice(["apptainer", "docker"]), default="apptainer")
@click.option("--default/--no-default", default=True, help="Make it the version that NAME means.")
@click.pass_obj
def publish(config: Config, name: str, variant: str, engine: str, default: bool) -> None:
    """Publish the built image of the recipe NAME (or NAME:VERSION, to make that the default)."""
    if ":" in name:
        image = load_catalogue(config.images.folder).find(name)
        Publisher(config.images.folder).make_default(image)
        click.echo(f"{image.name} now means {image.id}")
        return
    recipe = load_recipe(name, _folders(config), variant=variant, engine=engine)
    program = config.images.apptainer or Path("apptainer")
    result = Builder(ApptainerEngine(program), program, cache_dir(), print_progress).cached(recipe)
    if not result:
        raise InputError(f"{recipe.id} is not built", f"carme images build {recipe.name}")
    program = apptainer_for(config, cache_dir(), print_progress)
    published = publish_result(config, program, result, default)
    click.echo(f"{published.id}: published, {published.digest}")


@images.command()
@click.argument("image")
@click.pass_obj
def retire(config: Config, image: str) -> None:
    """Stop offering IMAGE (name or name:version); running sessions keep it."""
    for retired in Publisher(config.images.folder).retire(image):
        click.echo(f"{retired.id}: retired; carme images prune removes it when no session uses it")


@images.command()
@click.argument("names", nargs=-1, metavar="[IMAGE]...")
@click.option("--quick", is_flag=True, help="Check files and signatures only; start no container.")
@click.pass_obj
def verify(config: Config, names: tuple[str, ...], quick: bool) -> None:
    """Check published images: checksum, signature, and their own `verify` run inside."""
    publisher = Publisher(config.images.folder)
    catalogue = publisher.catalogue()
    chosen = [image for image in catalogue.index.images if image.state == "published"]
    if names:
        chosen = [image for image in chosen if image.name in names or image.id in names]
    if not chosen:
        offered = ", ".join(image.id for image in catalogue.offered()) or "none"
        raise InputError("no such published image", f"published: {offered}")
    program = apptainer_for(config, cache_dir(), print_progress)
    failures = 0
    for image in chosen:
        path = catalogue.path(image)
        problem = check_file(path, image.model_copy(update={"stamp": ""}))
        changes: dict[str, object] = {}
        if not problem:
            changes["stamp"] = file_stamp(path)
            if key := config.images.verify_key:
                changes["signed_by"] = signer(program, path, key)
                problem = "" if changes["signed_by"] else "it is not signed with images.verify_key"
        if not problem and not quick:
            scratch = cache_dir() / "build"
            scratch.mkdir(parents=True, exist_ok=True, mode=0o755)
            result = ImageInspector(program, path, build_user(), scratch).verify()
            changes["verified"] = result
            problem = "" if result.passed else f"verify fails: {result.output[-300:]}"
        if not publisher.update(image, changes):
            click.echo(f"{image.id}: published again or removed in the meantime, not checked")
            continue
        failures += bool(problem)
        click.echo(f"{image.id}: {problem or 'fine'}")
    if failures:
        raise UnavailableError(f"{failures} of {len(chosen)} images failed the checks")


@images.command()
@click.option("--assume-unused", is_flag=True, help="Do not ask Slurm which images are in use.")
@click.option("--builds", is_flag=True, help="Also remove cached builds that are not published.")
@click.pass_obj
def prune(config: Config, assume_unused: bool, builds: bool) -> None:
    """Remove retired images that no session uses."""
    in_use = frozenset[str]() if assume_unused else files_in_use(config)
    publisher = Publisher(config.images.folder)
    for image in publisher.prune(in_use):
        click.echo(f"{image.id}: removed")
    for image in publisher.catalogue().index.images:
        if image.state == "retired":
            click.echo(f"{image.id}: retired, kept: a session uses it")
    if builds:
        published = {image.file for image in publisher.catalogue().index.images}
        for path in sorted((cache_dir() / "images").glob("*.sif")):
            if path.name not in published:
                path.with_suffix(".json").unlink(missing_ok=True)
                path.unlink()
                click.echo(f"{path.name}: cached build removed")
    publisher.renew_stamps()


@images.command()
@click.option("--folder", type=click.Path(path_type=Path), help="Instead of images.node_cache.")
@click.pass_obj
def cache(config: Config, folder: Path | None) -> None:
    """Copy the offered images to this node's own disk (run by root in a prolog or a timer)."""
    target = folder or config.images.node_cache
    if not target:
        raise InputError("no folder is set", "set images.node_cache in carme.toml, or --folder")
    catalogue = load_catalogue(config.images.folder, bool(config.images.verify_key))
    copies = copy_images(catalogue, target, print_progress)
    click.echo(f"{target}: {len(copies)} of {len(catalogue.offered())} images")


@images.command()
@click.argument("path")
@click.pass_obj
def check(config: Config, path: str) -> None:
    """Check whether a session can start from your own SIF file PATH. Starts nothing in it."""
    key = config.images.verify_key
    program = apptainer_for(config, cache_dir(), print_progress) if key else None
    own = check_own_image(path, program, allowed=config.images.own_images, verify_key=key)
    version = f"JupyterHub {own.jupyterhub}" if own.jupyterhub else "its programs are not known"
    click.echo(f"{own.path}: fine, {version}")


def open_private_tmp(tmp: Path = Path("/tmp")) -> None:  # noqa: S108
    """Let the build user write to the private /tmp of a Slurm job of root.

    Slurm can give each job a /tmp that only its user may enter, but Apptainer writes there.
    """
    is_private = tmp.stat().st_mode & 0o777 == 0o700
    if os.geteuid() == 0 and "SLURM_JOB_ID" in os.environ and is_private:
        tmp.chmod(0o1777)


def build_in_job(
    config: Config, arguments: Sequence[str], partition: str | None, account: str | None
) -> None:
    """Run `carme images ARGUMENTS` in a job and wait; it prints to this process' output.

    The job uses the same cache folder, which must be on a file system that the node shares.
    """
    srun = str(config.slurm.bin / "srun") if config.slurm.bin else shutil.which("srun")
    if not srun:
        raise MissingError("srun is not on PATH", "set slurm.bin, or build without --slurm")
    command = [srun, "--job-name=carme-images", "--ntasks=1", f"--cpus-per-task={JOB_CPUS}"]
    command += [f"--mem={JOB_MEMORY}", f"--time={JOB_MINUTES}", "--unbuffered"]
    if partition:
        command.append(f"--partition={partition}")
    if account:
        command.append(f"--account={account}")
    environ = dict(os.environ)
    if config.slurm.conf:
        environ["SLURM_CONF"] = str(config.slurm.conf)
    result = execute(
        [*command, sys.executable, "-m", "carme.cli", "images", *arguments],
        stdout=None,
        stderr=None,
        timeout_seconds=None,
        env=environ,
        cwd="/",  # the current folder may not exist on the node
    )
    if result.returncode:
        raise UnavailableError("the build in Slurm failed; its messages are above")
