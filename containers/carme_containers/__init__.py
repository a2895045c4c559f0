"""Container images: recipes, builds, and publication in the catalogue."""

from carme_containers.publisher import ensure_image

__all__ = ["ensure_image"]
