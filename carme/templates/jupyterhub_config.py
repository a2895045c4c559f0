# Written by Carme; changes here are overwritten. Settings stand in carme.toml.
import carme_spawner

c = get_config()  # noqa: F821
carme_spawner.configure(c)
