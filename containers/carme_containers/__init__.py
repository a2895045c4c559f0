"""Container images: recipes, the builder, the catalogue of what is published."""

from carme_containers.publication import ensure_image

__all__ = ["ensure_image"]
