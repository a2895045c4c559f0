"""JupyterHub's side of Carme: the spawner, its form and the job script.

In jupyterhub_config.py: `import carme_spawner; carme_spawner.configure(c)`.
"""

from carme_spawner.configure import configure
from carme_spawner.spawner import CarmeSpawner

__all__ = ["CarmeSpawner", "configure"]
