"""Why a session cannot start, as every page and the REST API show it."""

from collections.abc import Mapping
from html import escape

from jupyterhub.spawner import SpawnException

from carme.errors import CarmeError, UnavailableError


def http_status(error: CarmeError) -> int:
    """503 while view, helper or Slurm is away; 400 for what they refuse."""
    return 503 if isinstance(error, UnavailableError) else 400


class SessionFailure(SpawnException):
    """A message for the user, with the end of the session's log where there is one.

    JupyterHub's pages look for attributes that its own exception does not set.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: str,
        log: str = "",
        status_code: int = 400,
        problems: Mapping[str, str] | None = None,
    ) -> None:
        html = f"<p>{escape(message)}</p>"
        if log:
            html += f'<p>The end of its log:</p><pre class="text-start">{escape(log)}</pre>'
            message += f"\nThe end of its log:\n{log}"
        super().__init__(message, reason=reason, message_html=html, status_code=status_code)
        self.problems = problems or {}
        """Field to message, when the options were wrong."""
        self.jupyterhub_message = message
        self.jupyterhub_html_message = html
