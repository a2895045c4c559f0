"""Pages, and the log-in through the hub. The scripts of the pages use the API."""

from __future__ import annotations

import secrets
from importlib.resources import files
from typing import Any, get_args
from urllib.parse import urlsplit

from flask import (
    Blueprint,
    Response,
    current_app,
    make_response,
    redirect,
    render_template,
    request,
    send_file,
    send_from_directory,
)

from carme.errors import BusyError, CarmeError
from carme.service import authentication, problems
from carme.service.context import current_context
from carme.service.hub_client import LOGIN_COOKIE, SESSION_COOKIE, SESSION_SECONDS
from carme.simulator.precision import Precision
from carme.simulator.runs.figures import FIGURES

TABS = (
    ("plan", "Plan"), ("explore", "Explore"), ("jobs", "My jobs"), ("cluster", "Cluster"),
    ("api", "API"),
)  # fmt: skip
pages = Blueprint("pages", __name__)


@pages.get("/")
def start() -> Any:
    return redirect(f"{current_context().hub.prefix}/plan")


@pages.get("/jobs/<int:job_id>")
def job(job_id: int) -> Any:
    return _page("job", f"Job {job_id}", job_id=job_id)


@pages.get("/static-web/<path:name>")
def shared_script(name: str) -> Response:
    """A script that the pages of hub and service share."""
    return send_from_directory(str(files("carme.web").joinpath("static")), name)


@pages.get("/static-plotly/plotly.min.js")
def plotly() -> Response:
    """Plotly's script from its Python package."""
    path = str(files("plotly").joinpath("package_data/plotly.min.js"))
    return send_file(path, mimetype="text/javascript", max_age=86400)


def _page(name: str, title: str, **values: Any) -> Any:
    """The page for a user who is logged in; others are sent to the hub's log-in."""
    context = current_context()
    values |= {"prefix": context.hub.prefix, "hub_prefix": context.hub.hub_prefix}
    values["site"] = context.config.cluster.title
    try:
        caller = authentication.identify()
    except CarmeError as error:
        page = render_template("unavailable.html", title="Not available", error=error, **values)
        if isinstance(error, BusyError):
            return page, 429, {"Retry-After": str(error.retry_seconds)}
        return page, 503
    if caller is None:
        return _login()
    return render_template(
        f"{name}.html",
        title=title,
        tab=name,
        tabs=TABS,
        caller=caller,
        csrf=context.sessions.csrf(request.cookies.get(SESSION_COOKIE, "")),
        operations=current_app.extensions["carme_api"].operations if name == "api" else (),
        precisions=get_args(Precision),
        figures={key: figure._asdict() for key, figure in FIGURES.items()},
        **values,
    )


for _name, _title in TABS:
    pages.add_url_rule(f"/{_name}", _name, _page, defaults={"name": _name, "title": _title})


def _login() -> Response:
    """Send the browser to the hub, which sends it back to the page that it asked for."""
    state = secrets.token_urlsafe(24)
    query = f"?{request.query_string.decode('ascii', 'replace')}" if request.query_string else ""
    address, verifier = current_context().hub.login_url(state)
    response = make_response(redirect(address))
    # In the cookie and not here: strangers must not fill the service's memory.
    _set_cookie(response, LOGIN_COOKIE, f"{state} {verifier} {request.path}{query}"[:3000], 600)
    return response


@pages.get("/oauth_callback")
def callback() -> Any:
    """The hub sends the browser here with a code."""
    context = current_context()
    prefix = context.hub.prefix
    state, _, rest = request.cookies.get(LOGIN_COOKIE, "").partition(" ")
    verifier, _, target = rest.partition(" ")
    returned_state, code = request.args.get("state", ""), request.args.get("code", "")
    is_ours = secrets.compare_digest(state.encode(), returned_state.encode())
    if not state or not is_ours or not code:
        return problems.answer(
            403, "This browser did not start this log-in.", f"open {prefix}/ again"
        )
    token = context.hub.token_for(code, verifier)
    user = authentication.user_of(token) if token else None
    if not token or not user:
        return problems.answer(403, "the hub did not confirm the log-in", f"open {prefix}/ again")
    # Only the service's own addresses: the browser can change the cookie.
    is_own = target.startswith(f"{prefix}/") and not urlsplit(target).netloc and "\\" not in target
    response = make_response(redirect(target if is_own else f"{prefix}/"))
    _set_cookie(response, SESSION_COOKIE, context.sessions.open(user[0], token), SESSION_SECONDS)
    response.delete_cookie(LOGIN_COOKIE, path=prefix)
    return response


@pages.post("/logout")
def logout() -> Response:
    """End the session of the service; the hub's own session stays."""
    authentication.authenticate()  # checks that the request comes from our own page
    context = current_context()
    context.sessions.close(request.cookies.get(SESSION_COOKIE, ""))
    response = Response(status=204)
    response.delete_cookie(SESSION_COOKIE, path=context.hub.prefix)
    return response


def _set_cookie(response: Response, name: str, value: str, seconds: int) -> None:
    context = current_context()
    response.set_cookie(
        name, value, max_age=seconds, path=context.hub.prefix, httponly=True, samesite="Lax",
        secure=context.config.hub.url.startswith("https:"),
    )  # fmt: skip
