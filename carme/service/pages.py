"""Pages: login through the hub, and what people look at. Their scripts use the API."""

from __future__ import annotations

import secrets
from typing import Any
from urllib.parse import urlsplit

from flask import (
    Blueprint,
    Response,
    make_response,
    redirect,
    render_template,
    request,
    send_file,
    send_from_directory,
)

from carme.config import Config
from carme.errors import CarmeError
from carme.service import authentication, problems
from carme.service.browser_sessions import COOKIE, SECONDS, STATE_COOKIE
from carme.service.context import current_context
from carme.service.endpoints import Api
from carme.service.hub_client import PREFIX

TABS = (
    ("plan", "Plan"), ("explore", "Explore"), ("jobs", "My jobs"), ("cluster", "Cluster"),
    ("api", "API"),
)  # fmt: skip


def blueprint(api: Api) -> Blueprint:
    """All pages."""
    found = Blueprint("pages", __name__, url_prefix=PREFIX)

    @found.get("/")
    def start() -> Any:
        return redirect(f"{PREFIX}/plan")

    for name, title in TABS:
        found.add_url_rule(f"/{name}", name, lambda name=name, title=title: _page(api, name, title))

    @found.get("/jobs/<int:job_id>")
    def job(job_id: int) -> Any:
        return _page(api, "job", f"Job {job_id}", job_id=job_id)

    @found.get("/static-web/<path:name>")
    def shared_script(name: str) -> Response:
        """A script that the pages of hub and service share."""
        from importlib.resources import files

        return send_from_directory(str(files("carme.web").joinpath("static")), name)

    @found.get("/static-plotly/plotly.min.js")
    def plotly() -> Response:
        """Plotly's script as its Python package has it."""
        from importlib.resources import files

        path = str(files("plotly").joinpath("package_data/plotly.min.js"))
        return send_file(path, mimetype="text/javascript", max_age=86400)

    found.add_url_rule("/oauth_callback", "callback", _callback)
    found.add_url_rule("/logout", "logout", _logout, methods=["POST"])
    return found


def _page(api: Api, name: str, title: str, **more: Any) -> Any:
    try:
        who = authentication.visitor()
    except CarmeError as error:
        return _sorry(error)
    if who is None:
        return _login()
    session = request.cookies.get(COOKIE, "")
    context = current_context()
    return render_template(
        f"{name}.html",
        title=title,
        tab=name,
        tabs=TABS,
        who=who,
        prefix=PREFIX,
        site=context.config.cluster.title,
        csrf=context.sessions.csrf(session),
        operations=api.operations if name == "api" else (),
        **more,
    )


def _login() -> Response:
    """Send the browser to the hub; come back to where it wanted to go."""
    state = secrets.token_urlsafe(24)
    query = f"?{request.query_string.decode('ascii', 'replace')}" if request.query_string else ""
    address, verifier = current_context().hub.login_url(state)
    response = make_response(redirect(address))
    # In the cookie and not here: strangers must not fill the service's memory.
    _set(response, STATE_COOKIE, f"{state} {verifier} {request.path}{query}"[:3000], 600)
    return response


def _callback() -> Any:
    """The hub sends the browser here with a code."""
    state, _, rest = request.cookies.get(STATE_COOKIE, "").partition(" ")
    verifier, _, target = rest.partition(" ")
    given, code = request.args.get("state", ""), request.args.get("code", "")
    if not state or not secrets.compare_digest(state.encode(), given.encode()) or not code:
        return problems.answer(403, "this login was not begun here", f"open {PREFIX}/ again")
    context = current_context()
    token = context.hub.token_for(code, verifier)
    user = context.hub.user_of(token) if token else None
    if not token or not user:
        return problems.answer(403, "the hub did not confirm the login", f"open {PREFIX}/ again")
    # Only addresses of our own: the cookie is the browser's to change.
    parsed = urlsplit(target)
    own = target.startswith(f"{PREFIX}/") and not parsed.netloc and "\\" not in target
    response = make_response(redirect(target if own else f"{PREFIX}/"))
    _set(response, COOKIE, context.sessions.open(token), SECONDS)
    response.delete_cookie(STATE_COOKIE, path=PREFIX)
    return response


def _logout() -> Response:
    """End the session here; the hub's own session stays."""
    authentication.authenticate()  # checks that our own page asks
    current_context().sessions.close(request.cookies.get(COOKIE, ""))
    response = Response(status=204)
    response.delete_cookie(COOKIE, path=PREFIX)
    return response


def _set(response: Response, name: str, value: str, seconds: int) -> None:
    config: Config = current_context().config
    response.set_cookie(
        name, value, max_age=seconds, path=PREFIX, httponly=True, samesite="Lax",
        secure=config.hub.url.startswith("https:"),
    )  # fmt: skip


def _sorry(error: CarmeError) -> Any:
    page = render_template(
        "sorry.html", title="Not now", error=error, prefix=PREFIX, tabs=(), tab="", who=None,
        site=current_context().config.cluster.title, csrf="",
    )  # fmt: skip
    return page, 503
