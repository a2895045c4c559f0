"""The time left in JupyterLab: shown, renewed by "more time" from anywhere, and a warning."""

import time

import pytest
from playwright.sync_api import expect

from support.browser import open_lab
from support.hub import User

SMALL = {"partition": "cpu", "gpus": 0, "cpus": 1, "memory_gb": 1}


@pytest.fixture
def person(cluster):
    user = User.fresh(cluster, cluster.users[0])
    yield user
    user.stop()


@pytest.fixture
def page(browser, cluster, person):
    """A page that has the user's cookies."""
    context = browser.new_context(viewport={"width": 1200, "height": 800})
    page = context.new_page()
    from support.browser import login

    login(page, cluster, person.name)
    yield page
    context.close()


def test_time_left_more_time_and_the_warning(cluster, person, page, screenshots):
    person.start(**SMALL, hours=0.1)  # six minutes: from the beginning in the last ten
    page.goto(f"{person.session_url}/lab")
    open_lab(page, cluster, person.name)
    time_left = page.locator("#carme-time-left")
    expect(time_left).to_contain_text("min left", timeout=20_000)
    toast = page.locator(".Toastify__toast").filter(has_text="This session ends in")
    expect(toast).to_be_visible()
    screenshots(page, "time-left-warning")

    time_left.get_by_role("button", name="One more hour").click()
    expect(time_left).to_contain_text("1 h ", timeout=20_000)
    [job] = cluster.jobs(person.name)
    limit = cluster.run(["squeue", "-h", "-j", job["id"], "-o", "%l"]).stdout.strip()
    assert limit == "1:06:00"
    screenshots(page, "time-left")

    # JupyterLab also shows more time that was requested elsewhere.
    extension = person.api("POST", "/carme/extend", json={"server": "", "minutes": 120}).json()
    assert extension["ends_at"] > time.time() + 3 * 3600
    expect(time_left).to_contain_text("3 h ", timeout=100_000)


def test_idle_gpus_are_told_in_jupyterlab(cluster, person, page):
    """JupyterLab shows the hub's warning; test_gpu_idle tests when the hub sends it."""
    warning = "It did nothing with its GPU for 2 h. It ends at 14:05 unless you run something."

    def with_warning(route):
        times = person.server("GET", "/carme/time").json()
        assert times["warning"] == "", "a session without GPUs has none"
        route.fulfill(json={**times, "warning": warning})

    person.start(**SMALL, hours=0.5)
    page.route("**/carme/time*", with_warning)
    page.goto(f"{person.session_url}/lab")
    open_lab(page, cluster, person.name)
    expect(page.locator("#carme-idle")).to_have_text("GPUs idle", timeout=20_000)
    expect(page.locator("#carme-idle")).to_have_attribute("title", warning)
    toast = page.locator(".Toastify__toast").filter(has_text="It ends at 14:05")
    expect(toast).to_be_visible()


def test_the_answers_of_the_extension(cluster, person):
    person.start(**SMALL, hours=0.5)
    times = person.server("GET", "/carme/time").json()
    assert 1500 < times["ends_at"] - times["now"] <= 1800
    assert times["warn_seconds"] == 600
    refused = person.server("POST", "/carme/time", json={"minutes": 60 * 24 * 20})
    assert (refused.status_code, "allows" in refused.json()["message"]) == (400, True)
    # Other users' tokens get no answer.
    other = User(cluster, cluster.users[1])
    other.login()
    assert (
        other.web.get(f"{person.session_url}/carme/time", timeout=20).status_code
        in (
            403,
            404,
        )
        or "/hub/" in other.web.get(f"{person.session_url}/carme/time", timeout=20).url
    )
    token = other.api("POST", f"/users/{other.name}/tokens", json={"note": "x"}).json()["token"]
    import requests

    response = requests.get(
        f"{person.url}/hub/api/carme/session",
        headers={"Authorization": f"token {token}"},
        timeout=20,
    )
    assert response.status_code == 403
