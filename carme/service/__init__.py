"""The prediction service: a Flask application beside the hub.

`create_app(config)` makes it; `carme-service` serves it. Only this package imports Flask.
"""

from carme.service.app import create_app

__all__ = ["create_app"]
