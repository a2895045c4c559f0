"""Who may do what, and what a request may be."""

import base64
import hashlib
from types import SimpleNamespace
from urllib.parse import parse_qsl, urlsplit

import pytest

from carme.service import hub_client
from carme.service.authentication import PEER
from carme.slurm.models import Job
from carme.system.guess_limits import GuessLimiter, TooManyGuessesError
from support.service import API, OWN

RESNET = {"workload": "resnet-50", "hardware": {"gpus": "1xV100"}}


@pytest.mark.parametrize("token", ["", "nonsense", "token-narrow", "token-service", "x" * 300, "ü"])
def test_without_a_valid_token_there_is_nothing(service, token):
    headers = {"Authorization": f"token {token}"} if token else {}
    for rule in service.app.url_map.iter_rules():
        if not rule.rule.startswith(API) or rule.rule.endswith("openapi.json"):
            continue
        path = rule.rule.replace("<int:job_id>", "1").replace("<string:name>", "x")
        path = path.split("<")[0].rstrip("/") + ("/x" if "<" in path else "")
        for method in rule.methods - {"HEAD", "OPTIONS"}:
            answer = service.client.open(path, method=method, headers=headers, json={})
            assert answer.status_code in (401, 404, 405), (method, path)
            assert answer.mimetype == "application/problem+json"


def test_admins_see_all_and_delete_nothing_of_others(service):
    kept = service.ask("POST", "/predictions", body={**RESNET, "keep": True}).json["id"]
    assert service.ask("GET", f"/predictions/{kept}", who="ben").status_code == 404
    assert service.ask("DELETE", f"/predictions/{kept}", who="ben").status_code == 404
    assert service.ask("GET", f"/predictions/{kept}", who="ada").status_code == 200
    assert service.ask("DELETE", f"/predictions/{kept}", who="ada").status_code == 403
    assert service.ask("GET", "/predictions", who="ben").json["items"] == []
    assert len(service.ask("GET", "/predictions", who="ada").json["items"]) == 1


def test_the_hub_speaks_for_a_user_with_the_services_own_token(service):
    headers = {"Authorization": f"token {OWN}", "Carme-User": "ann"}
    body = {**RESNET, "keep": True, "job_id": 17}
    service.view.jobs["17"] = Job(id=17, user="ann")
    answer = service.client.post(f"{API}/predictions", headers=headers, json=body)
    assert answer.json["user"] == "ann"
    nobody = service.client.get(f"{API}/predictions", headers={"Authorization": f"token {OWN}"})
    assert nobody.status_code == 401
    # A user's own token cannot name another user, nor a job that is not theirs.
    headers = {"Authorization": "token token-ben", "Carme-User": "ann"}
    assert service.client.get(f"{API}/predictions", headers=headers).json["items"] == []
    assert service.ask("POST", "/predictions", who="ben", body=body).status_code == 404


@pytest.mark.parametrize("path", ["predictions", "session-predictions"])
@pytest.mark.parametrize("owner", ["ben", "", None])
def test_nobody_stores_a_prediction_with_a_job_of_others(service, path, owner):
    """Also not through the hub, which has the number from a program that runs as the user."""
    service.view.missing = True
    if owner is not None:
        service.view.jobs["17"] = Job(id=17, user=owner)
    body = {"workload": "resnet-50", "job_id": 17}
    if path == "predictions":
        body |= {"hardware": {"gpus": "1xV100"}, "keep": True}
    else:
        body |= {"partition": "gpu", "gpus": 1, "gpu_type": "virtual-a100", "epochs": 1}
    hub = {"Authorization": f"token {OWN}", "Carme-User": "ann"}
    for headers in (hub, {"Authorization": "token token-ann"}):
        answer = service.client.post(f"{API}/{path}", headers=headers, json=body)
        assert (answer.status_code, "no job 17" in answer.json["detail"]) == (404, True)
    assert service.ask("GET", "/predictions").json["items"] == []
    service.view.jobs["17"] = Job(id=17, user="ann")
    answer = service.client.post(f"{API}/{path}", headers=hub, json=body)
    assert (answer.status_code, answer.json["job_id"]) == (200, 17)


def login(service, token="token-ann"):
    name = service.context.sessions.open("ann", token)
    service.client.set_cookie("carme-service", name, path="/services/carme")
    return service.context.sessions.csrf(name)


def test_a_cookie_may_read_and_changes_need_the_pages_csrf_token(service):
    csrf = login(service)
    assert service.ask("GET", "/predictions", who="").status_code == 200
    path = f"{API}/predictions"
    assert service.client.post(path, json=RESNET).status_code == 403
    wrong = {"X-CSRF-Token": "0" * 64}
    assert service.client.post(path, json=RESNET, headers=wrong).status_code == 403
    right = {"X-CSRF-Token": csrf}
    assert service.client.post(path, json=RESNET, headers=right).status_code == 200
    elsewhere = {**right, "Sec-Fetch-Site": "cross-site"}
    assert service.client.post(path, json=RESNET, headers=elsewhere).status_code == 403


@pytest.mark.parametrize(
    ("site", "mode", "status"),
    [
        ("same-origin", "cors", 200),
        ("none", "navigate", 200),
        ("same-site", "navigate", 200),
        ("same-site", "cors", 403),
        ("cross-site", "no-cors", 403),
    ],
)
def test_pages_of_other_origins_read_nothing_with_the_cookie(service, site, mode, status):
    login(service)
    headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode}
    assert service.client.get(f"{API}/predictions", headers=headers).status_code == status


def test_a_session_ends_with_its_token(service):
    login(service, "token-gone")
    assert service.ask("GET", "/predictions", who="").status_code == 401
    assert service.client.get("/services/carme/plan").status_code == 302


def test_a_user_logs_out_with_the_button_of_every_page(service):
    csrf = login(service)
    for name in ("plan", "jobs", "api"):
        assert b'id="logout"' in service.client.get(f"/services/carme/{name}").data
    path = "/services/carme/logout"
    assert service.client.post(path).status_code == 403
    answer = service.client.post(path, headers={"X-CSRF-Token": csrf})
    assert answer.status_code == 204
    assert "carme-service=;" in answer.headers["Set-Cookie"]
    assert service.client.get("/services/carme/plan").status_code == 302


def test_headers(service):
    login(service)
    page = service.client.get("/services/carme/plan")
    assert page.status_code == 200
    policy = page.headers["Content-Security-Policy"]
    assert "script-src 'self'" in policy
    assert "unsafe-eval" not in policy
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    assert b"<script>" not in page.data
    assert b"style=" not in page.data


def begin_login(service):
    """The query of the hub's address that a browser is sent to."""
    answer = service.client.get("/services/carme/explore?x=1")
    address = urlsplit(answer.headers["Location"])
    assert address.path == "/hub/api/oauth2/authorize"
    return dict(parse_qsl(address.query))


def test_a_login_through_the_hub(service):
    query = begin_login(service)
    assert query["client_id"] == "service-carme"
    assert query["redirect_uri"] == "http://127.0.0.1:8000/services/carme/oauth_callback"
    back = f"/services/carme/oauth_callback?state={query['state']}"
    assert service.client.get(f"{back}&code=bad").status_code == 403
    done = service.client.get(f"{back}&code=good")
    assert done.headers["Location"] == "/services/carme/explore?x=1"
    assert service.client.get("/services/carme/explore").status_code == 200
    form = service.hub.login_forms[-1]
    assert form["client_secret"] == OWN
    digest = hashlib.sha256(form["code_verifier"].encode()).digest()
    assert query["code_challenge"] == base64.urlsafe_b64encode(digest).decode().rstrip("=")


def test_a_login_while_the_hub_is_away(service):
    query = begin_login(service)
    service.stop_hub()
    back = service.client.get(f"/services/carme/oauth_callback?state={query['state']}&code=good")
    assert back.status_code == 503


def test_a_foreign_target_after_the_login_is_not_followed(service):
    for target in ("https://evil.example/", "//evil.example/x", "/services/carme/..//evil"):
        service.client.set_cookie(
            "carme-service-login", f"abc verifier {target}", path="/services/carme"
        )
        answer = service.client.get("/services/carme/oauth_callback?state=abc&code=good")
        assert answer.status_code == 302
        assert "evil.example" not in answer.headers.get("Location", "")
    forged = service.client.get("/services/carme/oauth_callback?state=other&code=x")
    assert forged.status_code == 403


def test_sizes_and_rates(tmp_path):
    from support.service import Service

    service = Service(tmp_path, most_body_bytes=2000, requests_per_minute=20)
    try:
        large = {**RESNET, "workload": "x" * 5000}
        assert service.ask("POST", "/predictions", body=large).status_code == 413
        statuses = [service.ask("GET", "/predictions").status_code for _ in range(15)]
        assert statuses[0] == 200
        assert statuses[-1] == 429
        assert service.ask("GET", "/predictions", who="ben").status_code == 200
    finally:
        service.close()


def test_metrics_are_for_prometheus(service):
    assert service.client.get("/services/carme/metrics").status_code == 401
    assert service.client.get("/services/carme/healthz").json["database"] == "ok"


def test_wrong_tokens_neither_flood_the_hub_nor_keep_others_out(service, monkeypatch):
    """A right token is found without the hub; after many wrong ones of a peer nobody is asked."""
    asked, now = [], [1000.0]
    check = service.context.hub._user_of

    def slow_check(token):
        asked.append(token)
        now[0] += 0.01
        return check(token)

    service.context.hub._user_of = slow_check
    service.context.hub._guesses = GuessLimiter(clock=lambda: now[0])
    monkeypatch.setattr(hub_client, "time", SimpleNamespace(monotonic=lambda: now[0]))
    stranger = {"REMOTE_ADDR": "10.0.0.66"}

    def ask(token, **environ):
        headers = {"Authorization": f"token {token}"}
        return service.client.get(f"{API}/predictions", headers=headers, environ_base=environ)

    assert ask("token-ann", **stranger).status_code == 200
    answers = [ask(f"wrong-{number}", **stranger) for number in range(100)]
    assert {answer.status_code for answer in answers} == {401, 429}
    assert int(answers[-1].headers["Retry-After"]) > 0
    assert len(asked) < 60
    assert ask("token-ann", **stranger).status_code == 200
    assert ask("token-ben").status_code == 200  # of another peer, and new
    # A token that was right before is asked about again, whoever sends it.
    service.context.hub._users.clear()
    assert ask("token-ann", **stranger).status_code == 200
    assert ask("token-ada", **stranger).status_code == 429


def test_a_page_says_that_too_many_tokens_were_wrong(service):
    """Also in the log-in; the hub's answers are charged to the peer that sent the token."""
    query = begin_login(service)
    peers = []

    def refuse(_token, peer=""):
        peers.append(peer)
        raise TooManyGuessesError(7.5)

    service.context.hub.user_of = refuse
    back = f"/services/carme/oauth_callback?state={query['state']}&code=good"
    answer = service.client.get(back, environ_base={PEER: "10.0.0.66"})
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "8")
    login(service)
    page = service.client.get("/services/carme/plan", environ_base={PEER: "10.0.0.66"})
    assert (page.status_code, page.headers["Retry-After"]) == (429, "8")
    assert page.mimetype == "text/html"
    assert b"too many wrong tokens" in page.data
    assert peers == ["10.0.0.66"] * 2
