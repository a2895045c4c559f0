"""One call from nothing to a published image."""

from pathlib import Path

from carme.config import Config
from carme.images import Image
from carme.local.apptainer import find_or_install
from carme_containers.builder import Builder, Progress
from carme_containers.catalogue import Publisher
from carme_containers.recipe import load_recipe


def ensure_image(name: str, config: Config, cache: Path, progress: Progress) -> Image:
    """The published image of the recipe `name`: built when it never was, published when it is not.

    Again is quick and changes nothing.
    """
    apptainer = config.images.apptainer or find_or_install(cache, progress)
    builder = Builder(apptainer, cache, progress, config.images.debian_mirror)
    result = builder.build(load_recipe(name))
    publisher = Publisher(config.images.folder)
    return publisher.publish(result.path, result.image)
