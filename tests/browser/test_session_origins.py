"""A page that one user serves, opened by another who is logged in: it gets nothing of theirs."""

import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from support.browser import login
from support.hub import User

SMALL = {"partition": "cpu", "gpus": 0, "cpus": 1, "memory_gb": 1}

# Runs in the Jupyter server of the user who attacks: a page of theirs, open to everybody.
SERVER_EXTENSION = """
from tornado.web import RequestHandler

class Page(RequestHandler):
    def get(self):
        self.finish("<!doctype html><title>A page of a user</title>")

def _jupyter_server_extension_points():
    return [{"module": "attacking_page"}]

def _load_jupyter_server_extension(app):
    base = app.web_app.settings["base_url"].rstrip("/")
    app.web_app.add_handlers(".*$", [(base + "/attack", Page)])
"""
SERVER_CONFIG = """
import sys
sys.path.append({folder!r})
c.ServerApp.jpserver_extensions.update({{"attacking_page": True}})
"""

READ = """async (url) => {
  try {
    const answer = await fetch(url,
      {credentials: "include", redirect: "follow", signal: AbortSignal.timeout(10000)});
    return {status: answer.status, text: await answer.text()};
  } catch (error) {
    return error.name === "TimeoutError" ? "no answer" : {error: String(error)};
  }
}"""
MAKE_TOKEN = """async ([url, xsrf]) => {
  try {
    const answer = await fetch(url, {method: "POST", credentials: "include",
      headers: {"X-XSRFToken": xsrf, "Content-Type": "application/json"}, body: "{}",
      signal: AbortSignal.timeout(10000)});
    return {status: answer.status, text: await answer.text()};
  } catch (error) {
    return error.name === "TimeoutError" ? "no answer" : {error: String(error)};
  }
}"""
MAKE_TOKEN_SIMPLY = """async ([url, xsrf]) => {
  await fetch(`${url}?_xsrf=${xsrf}`, {method: "POST", credentials: "include", mode: "no-cors",
    headers: {"Content-Type": "text/plain"}, body: "{}", signal: AbortSignal.timeout(10000)})
    .catch(() => 0);
}"""
POST_FORM = """(url) => new Promise((resolve) => {
  const frame = Object.assign(document.createElement("iframe"), {name: "target"});
  frame.onload = resolve;
  const form = Object.assign(document.createElement("form"),
    {method: "POST", action: url, target: "target"});
  document.body.append(frame, form);
  form.submit();
  setTimeout(resolve, 5000);
})"""
READ_FRAME = """(url) => new Promise((resolve) => {
  const frame = document.createElement("iframe");
  frame.onload = () => {
    try { resolve(frame.contentDocument ? frame.contentDocument.body.innerHTML : "closed"); }
    catch (error) { resolve("closed"); }
  };
  frame.src = url;
  document.body.append(frame);
})"""
OPEN_WINDOW = """async (url) => {
  const opened = window.open(url);
  for (let i = 0; i < 100 && opened && !opened.closed; i++) {
    try { if (opened.location.href !== "about:blank" && opened.document.title)
      return opened.document.documentElement.innerHTML; }
    catch (error) { return "closed"; }
    await new Promise((next) => setTimeout(next, 100));
  }
  return "closed";
}"""
SET_COOKIE = """([name, domain]) => {
  document.cookie = `${name}=planted; path=/; domain=${domain}`;
  document.cookie = `${name}=planted; path=/hub/; domain=${domain}`;
}"""
LISTEN = """(url) => new Promise((resolve) => {
  const socket = new WebSocket(url);
  socket.onopen = () => { socket.close(); resolve("open"); };
  socket.onerror = () => resolve("refused");
})"""


def run_script(page, script, argument):
    """What the script returns in the page; "no answer" if it does not within 15 seconds."""
    no_answer = 'new Promise((resolve) => setTimeout(resolve, 15000, "no answer"))'
    raced = f"(argument) => Promise.race([({script})(argument), {no_answer}])"
    return page.evaluate(raced, argument)


def open_window(pages, url):
    """What the other user's page reads of a window that it opens; the window is closed again."""
    own, page = pages
    content = run_script(page, OPEN_WINDOW, url)
    for opened in page.context.pages:
        if opened not in (own, page):
            opened.close()
    return content


@pytest.fixture(scope="module")
def attacker(cluster):
    """A user whose session serves a page of their own to everybody."""
    user = User.fresh(cluster, cluster.users[1])
    folder = Path(f"/home/{user.name}/.jupyter")
    cluster.run_as(user.name, ["mkdir", "-p", folder])
    for name, text in (
        ("attacking_page.py", SERVER_EXTENSION),
        ("jupyter_server_config.py", SERVER_CONFIG.format(folder=str(folder))),
    ):
        cluster.run_as(user.name, ["tee", folder / name], input=text, check=True)
    user.start(**SMALL, hours=0.5)
    yield user
    user.stop()
    cluster.run_as(user.name, ["rm", "-r", folder])


@pytest.fixture(scope="module")
def victim(cluster):
    user = User.fresh(cluster, cluster.users[0])
    user.start(**SMALL, hours=0.5)
    yield user
    user.stop()


@pytest.fixture(scope="module")
def pages(browser, cluster, attacker, victim):
    """Two pages in the victim's browser: the hub's, and the one that the attacker serves."""
    context = browser.new_context()
    own = context.new_page()
    login(own, cluster, victim.name)
    own.goto(f"{victim.session_url}/lab")  # a session cookie for the victim's own session
    own.wait_for_selector(".jp-LabShell", timeout=60_000)
    own.goto(f"{cluster.config.hub.url}/services/carme/plan")
    own.goto(f"{cluster.config.hub.url}/hub/home")
    page = context.new_page()
    page.goto(f"{attacker.session_url}/attack")
    assert page.title() == "A page of a user"
    yield own, page
    context.close()


def hub_token(own):
    return own.evaluate("() => window.jhdata.xsrf_token")


def token_count(user):
    answer = user.api("GET", f"/users/{user.name}/tokens")
    assert answer.status_code == 200
    return len(answer.json()["api_tokens"])


def test_origins_are_three(cluster, attacker, victim):
    hub = urlsplit(cluster.config.hub.url).hostname
    hosts = {hub, *(urlsplit(user.session_url).hostname for user in (attacker, victim))}
    assert len(hosts) == 3


def test_own_page_makes_a_token_and_the_other_users_page_does_not(cluster, pages, victim):
    own, page = pages
    url = f"{cluster.config.hub.url}/hub/api/users/{victim.name}/tokens"
    xsrf = hub_token(own)
    assert run_script(own, MAKE_TOKEN, [url, xsrf])["status"] == 201
    before = token_count(victim)
    # Even a page that had learned the XSRF token makes none.
    assert "error" in run_script(page, MAKE_TOKEN, [url, xsrf])
    run_script(page, MAKE_TOKEN_SIMPLY, [url, xsrf])
    run_script(page, POST_FORM, f"{url}?_xsrf={xsrf}")
    assert token_count(victim) == before


@pytest.mark.parametrize("path", ["/hub/home", "/hub/token", "/hub/api/user", "/hub/login"])
def test_hub_pages_are_not_readable(cluster, pages, attacker, path):
    own, page = pages
    if path != "/hub/login":
        assert run_script(own, READ, f"{path}?_xsrf={hub_token(own)}")["status"] == 200
    hub = cluster.config.hub.url
    assert "error" in run_script(page, READ, f"{hub}{path}")
    # The hub answers nothing under the name of a session either.
    at_session = urlsplit(attacker.session_url)._replace(path=path).geturl()
    answer = run_script(page, READ, at_session)
    assert "error" in answer or answer["status"] == 403
    for url in (f"{hub}{path}", at_session):
        content = run_script(page, READ_FRAME, url)
        assert content == "closed" or "refuses this request" in content
    assert open_window(pages, f"{hub}{path}") == "closed"


def test_service_is_not_readable(cluster, pages, attacker):
    own, page = pages
    path = "/services/carme/api/v1/jobs"
    assert run_script(own, READ, path)["status"] == 200
    assert "error" in run_script(page, READ, f"{cluster.config.hub.url}{path}")
    at_session = urlsplit(attacker.session_url)._replace(path=path).geturl()
    answer = run_script(page, READ, at_session)
    assert "error" in answer or answer["status"] in (403, 404)


def test_other_session_is_not_readable(pages, victim):
    _, page = pages
    assert "error" in run_script(page, READ, f"{victim.session_url}/api/contents")
    assert run_script(page, READ_FRAME, f"{victim.session_url}/lab") == "closed"
    assert open_window(pages, f"{victim.session_url}/lab") == "closed"
    socket = f"{victim.session_url}/api/events/subscribe".replace("http", "ws", 1)
    assert run_script(page, LISTEN, socket) == "refused"


def test_cookies_of_hub_and_sessions_cannot_be_planted(cluster, pages, victim):
    _, page = pages
    hosts = [urlsplit(url).hostname for url in (cluster.config.hub.url, victim.session_url)]
    for name in ("_xsrf", "jupyterhub-hub-login", "jupyterhub-session-id"):
        for domain in (*hosts, "localhost"):
            run_script(page, SET_COOKIE, [name, domain])
    planted = [c for c in page.context.cookies() if c["value"] == "planted"]
    assert not planted


def test_session_page_holds_no_token(pages, victim):
    own, _ = pages
    lab = own.context.new_page()
    lab.goto(f"{victim.session_url}/lab")
    settings = json.loads(lab.locator("#jupyter-config-data").inner_text())
    assert not settings.get("token")
    file = Path(f"/home/{victim.name}/.carme/sessions/default/session.json")
    secrets = json.loads(file.read_text())["environment"]
    assert secrets["JUPYTERHUB_API_TOKEN"] not in lab.content()
    lab.close()


def test_wrong_host_leads_to_the_hub(cluster, pages, victim):
    own, _ = pages
    visit = own.context.new_page()
    visit.goto(f"{urlsplit(victim.session_url)._replace(path='/hub/home').geturl()}")
    assert visit.url == f"{cluster.config.hub.url}/hub/home"
    visit.close()
