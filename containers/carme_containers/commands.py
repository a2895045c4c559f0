"""`carme images`: build, check, publish and retire container images."""

import signal
import sys
from pathlib import Path

import click

from carme.config import Config, load
from carme.errors import CarmeError, InputError, UnavailableError
from carme.images.catalogue import Catalogue, check_file, file_stamp, load_catalogue
from carme.images.own_image import check_own_image
from carme.system.files import cache_dir
from carme_containers import tables
from carme_containers.apptainer_engine import ApptainerEngine
from carme_containers.build_log import Progress
from carme_containers.build_user import build_user
from carme_containers.builder import Builder, BuildResult, Engine
from carme_containers.image_inspector import ImageInspector
from carme_containers.images_in_use import files_in_use
from carme_containers.node_cache import fill
from carme_containers.publication import apptainer_for, publish_result
from carme_containers.publisher import Publisher
from carme_containers.recipe import OWN_RECIPES, Recipe, find_recipes, load_recipe
from carme_containers.signing import signer
from carme_containers.slurm_build import build_in_job, open_private_tmp


@click.group()
@click.option("--config", "path", type=click.Path(path_type=Path), help="Another carme.toml.")
@click.pass_context
def images(ctx: click.Context, path: Path | None) -> None:
    """Build, publish and check container images."""
    ctx.obj = load(path)


def say(text: str) -> None:
    """Progress goes to stderr: stdout is for what was asked."""
    click.echo(text, err=True)


def _folders(config: Config) -> tuple[Path, ...]:
    return (OWN_RECIPES, *config.images.recipes)


def _builder(config: Config, engine: str, progress: Progress) -> Builder:
    cache = cache_dir()
    program = apptainer_for(config, cache, progress)
    maker: Engine = ApptainerEngine(program, config.images.debian_mirror)
    if engine == "docker":
        # Imported when used: the SDK is an extra, and Apptainer needs none of it.
        from carme_containers.docker_engine import DockerEngine

        maker = DockerEngine(ApptainerEngine(program, config.images.debian_mirror))
    return Builder(maker, program, cache, progress)


def _arguments(pairs: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"{pair!r} is not an argument", "write it like NAME=VALUE")
        found[key] = value
    return found


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
    """Build the recipes NAMES and publish them; what has not changed is not built again."""
    given = _arguments(pairs)
    recipes = [
        load_recipe(name, _folders(config), variant=variant, arguments=given, engine=engine)
        for name in names
    ]
    if slurm:
        options = ["build", "--no-publish", f"--engine={engine}", f"--variant={variant}"]
        options += [f"--arg={pair}" for pair in pairs] + (["--force"] if force else [])
        build_in_job(config, [*options, *names], partition, account)
        force = False
    # Ended by a scheduler or a service manager, a build cleans up as after Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    open_private_tmp()
    builder = _builder(config, engine, say)
    failed = []
    for recipe in recipes:
        try:
            result = builder.build(recipe, force)
        except CarmeError as error:
            # The others still get their turn; the published image of before stays in use.
            failed.append(recipe.id)
            click.secho(str(error), fg="red", err=True)
            continue
        state, image = "built" if result.fresh else "unchanged", result.image
        if publish:
            image = publish_result(config, builder.apptainer, result)
            state += ", published"
        click.echo(f"{recipe.id}: {state}, {image.digest}")
    if failed:
        raise UnavailableError(f"not built: {', '.join(failed)}; what was published stays in use")


@images.command("list")
@click.option("--all", "everything", is_flag=True, help="Retired ones and bare recipes too.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.pass_obj
def list_images(config: Config, everything: bool, as_json: bool) -> None:
    """List the published images."""
    catalogue = load_catalogue(config.images.folder, bool(config.images.verify_key))
    recipes = find_recipes(_folders(config)) if everything else {}
    tables.catalogue(catalogue, everything, recipes, as_json)


@images.command("show")
@click.argument("image")
@click.option("--packages", is_flag=True, help="Every package inside.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.pass_obj
def show_image(config: Config, image: str, packages: bool, as_json: bool) -> None:
    """Show what is known about IMAGE (name or name:version)."""
    catalogue = load_catalogue(config.images.folder)
    tables.image(catalogue, catalogue.find(image), packages, as_json)


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
    result = _ready(config, recipe)
    cache = cache_dir()
    placed = publish_result(config, apptainer_for(config, cache, say), result, default)
    click.echo(f"{placed.id}: published, {placed.digest}")


def _ready(config: Config, recipe: Recipe) -> BuildResult:
    program = config.images.apptainer or Path("apptainer")
    ready = Builder(ApptainerEngine(program), program, cache_dir(), say).ready(recipe)
    if not ready:
        raise InputError(f"{recipe.id} is not built", f"carme images build {recipe.name}")
    return ready


@images.command()
@click.argument("image")
@click.pass_obj
def retire(config: Config, image: str) -> None:
    """Offer IMAGE (name or name:version) no longer; running sessions keep it."""
    for gone in Publisher(config.images.folder).retire(image):
        click.echo(f"{gone.id}: retired; carme images prune removes it when no session uses it")


@images.command()
@click.argument("wanted", nargs=-1, metavar="[IMAGE]...")
@click.option("--quick", is_flag=True, help="Files and signatures only; start nothing.")
@click.pass_obj
def verify(config: Config, wanted: tuple[str, ...], quick: bool) -> None:
    """Check published images: checksum, signature, and their own `verify` run inside."""
    publisher = Publisher(config.images.folder)
    catalogue = publisher.catalogue()
    chosen = [image for image in catalogue.index.images if image.state == "published"]
    if wanted:
        chosen = [i for i in chosen if i.name in wanted or i.id in wanted]
    if not chosen:
        raise InputError("no such published image", _known(catalogue))
    program = apptainer_for(config, cache_dir(), say)
    bad = 0
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
            inside = ImageInspector(program, path, build_user(), _scratch())
            result = inside.verify()
            changes["verified"] = result
            problem = "" if result.passed else f"verify fails: {result.output[-300:]}"
        if not publisher.update(image, changes):
            click.echo(f"{image.id}: published anew or removed meanwhile, not checked")
            continue
        bad += bool(problem)
        click.echo(f"{image.id}: {problem or 'fine'}")
    if bad:
        raise UnavailableError(f"{bad} of {len(chosen)} images are not as they should be")


def _scratch() -> Path:
    folder = cache_dir() / "build"
    folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    return folder


def _known(catalogue: Catalogue) -> str:
    return f"published: {', '.join(i.id for i in catalogue.offered()) or 'none'}"


@images.command()
@click.option("--assume-unused", is_flag=True, help="Do not ask Slurm which images are in use.")
@click.option("--builds", is_flag=True, help="Also drop cached builds that are not published.")
@click.pass_obj
def prune(config: Config, assume_unused: bool, builds: bool) -> None:
    """Remove retired images that no session uses."""
    in_use = frozenset[str]() if assume_unused else files_in_use(config)
    publisher = Publisher(config.images.folder)
    gone = publisher.prune(in_use)
    for image in gone:
        click.echo(f"{image.id}: removed")
    kept = [i for i in publisher.catalogue().index.images if i.state == "retired"]
    for image in kept:
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
    """Copy the offered images to this node's own disk (run by root: a prolog or a timer)."""
    target = folder or config.images.node_cache
    if not target:
        raise InputError("which folder?", "set images.node_cache in carme.toml, or --folder")
    catalogue = load_catalogue(config.images.folder, bool(config.images.verify_key))
    there = fill(catalogue, target, say)
    click.echo(f"{target}: {len(there)} of {len(catalogue.offered())} images")


@images.command()
@click.argument("path")
@click.pass_obj
def check(config: Config, path: str) -> None:
    """Say whether a session can start from the SIF file PATH of your own."""
    own = check_own_image(
        path,
        apptainer_for(config, cache_dir(), say),
        allowed=config.images.own_images,
        verify_key=config.images.verify_key,
    )
    click.echo(f"{own.path}: fine, JupyterHub {own.jupyterhub}")
