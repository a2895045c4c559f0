"""From a recipe to a published image, in one call."""

from pathlib import Path

from carme.config import Config
from carme.errors import ConfigError
from carme.images.catalogue import Image, file_digest
from carme.images.own_image import find_apptainer
from carme.system.apptainer import find_or_install
from carme_containers import signing
from carme_containers.apptainer_engine import ApptainerEngine
from carme_containers.build_log import Progress
from carme_containers.builder import Builder, BuildResult
from carme_containers.publisher import Publisher
from carme_containers.recipe import OWN_RECIPES, load_recipe


def ensure_image(name: str, config: Config, cache: Path, progress: Progress) -> Image:
    """The published image of the recipe `name`: built when it never was, published when it is not.

    Again is quick and changes nothing.
    """
    apptainer = apptainer_for(config, cache, progress)
    engine = ApptainerEngine(apptainer, config.images.debian_mirror)
    builder = Builder(engine, apptainer, cache, progress)
    result = builder.build(load_recipe(name, (OWN_RECIPES, *config.images.recipes)))
    return publish_result(config, apptainer, result)


def publish_result(
    config: Config, apptainer: Path, result: BuildResult, default: bool = True
) -> Image:
    """Publish a built image, signed where the site has a key."""
    publisher = Publisher(config.images.folder)
    image = result.image
    secret, public = config.images.signing_key, config.images.verify_key
    if not secret:
        return publisher.publish(result.path, image, default)
    if not public:
        raise ConfigError("images.signing_key is set, images.verify_key is not", "set both or none")
    if before := publisher.signed_copy(image):
        same = {"digest": before.digest, "size_bytes": before.size_bytes}
        update = {**same, "signed_by": before.signed_by}
        return publisher.publish(result.path, image.model_copy(update=update), default)
    # A signature changes the file, so a copy is signed: the cache keeps what the build gave.
    with publisher.draft(result.path, image) as draft:
        signing.sign(apptainer, draft, secret)
        signed_by = signing.signer(apptainer, draft, public)
        if not signed_by:
            raise ConfigError("images.verify_key is not the other half of images.signing_key")
        update = {
            "digest": file_digest(draft),
            "size_bytes": draft.stat().st_size,
            "signed_by": signed_by,
        }
        return publisher.publish(draft, image.model_copy(update=update), default, consume=True)


def apptainer_for(config: Config, cache: Path, progress: Progress) -> Path:
    """The program that the configuration names or PATH has; on Debian, else a private copy."""
    found = find_apptainer(config.images.apptainer)
    return found or find_or_install(cache, progress, config.images.debian_mirror)
