"""Every dashboard, in the order of the menu."""

from carme_monitoring.dashboards import (
    cluster,
    energy,
    health,
    job,
    node,
    predictions,
    queue,
    user,
    waste,
)
from carme_monitoring.dashboards.model import Dashboard

BOARDS: tuple[Dashboard, ...] = (
    cluster.BOARD,
    queue.BOARD,
    node.BOARD,
    job.BOARD,
    user.BOARD,
    energy.BOARD,
    waste.BOARD,
    predictions.BOARD,
    health.BOARD,
)
