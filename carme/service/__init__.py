"""The prediction service: a Flask application beside the hub.

`app.create_app(config)` makes it; `carme-service` serves it. Only this package imports Flask.
"""
