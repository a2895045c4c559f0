"""The steps of the tutorial: wait, work, check the time left, stop, start again."""

from playwright.sync_api import expect

from support.browser import fill_form, login, open_lab
from support.cluster import wait_for
from support.hub import User


def test_from_waiting_to_starting_again(cluster, browser, screenshots):
    other, user = cluster.users[0], cluster.users[1]
    User.fresh(cluster, user)
    User(cluster, other).login()
    busy = cluster.run_as(
        other,
        [
            *("sbatch", "--parsable", "-p", "cpu", "-c", "8", "--mem=100", "-t", "20"),
            *("-D", "/tmp", "-o", "/dev/null"),
        ],
        input="#!/bin/sh\nsleep 1000\n",
    ).stdout.strip()
    wait_for(lambda: cluster.jobs(other), 20, "a full node")
    page = browser.new_context(viewport={"width": 1200, "height": 800}).new_page()
    try:
        login(page, cluster, user)
        fill_form(page, partition="cpu", gpus="0")
        page.get_by_role("button", name="Start").click()
        expect(page.locator("body")).to_contain_text("number 1 in the queue of cpu", timeout=40_000)
        screenshots(page, "waiting")
    finally:
        cluster.run(["scancel", busy])
    open_lab(page, cluster, user)

    home = page.context.new_page()
    home.goto(f"{cluster.config.hub.url}/hub/home")
    expect(home.locator(".carme-left")).to_contain_text("min left")
    home.get_by_role("button", name="One more hour").click()
    expect(home.locator(".carme-left")).to_contain_text("1 h ", timeout=20_000)
    screenshots(home, "hub-home")

    [job] = cluster.jobs(user)
    cluster.run(["scancel", job["id"]])
    wait_for(lambda: not User.state(_logged_in(cluster, user)), 60, "the hub notices")
    home.goto(f"{cluster.config.hub.url}/hub/home")
    expect(home.locator("#carme-ended")).to_contain_text("The session was cancelled.")
    screenshots(home, "session-ended")

    home.get_by_role("link", name="Start again with the same choices").click()
    open_lab(home, cluster, user)
    [new_job] = cluster.jobs(user)
    assert (new_job["node"], new_job["id"] != job["id"]) == ("cpu01", True)
    limit = cluster.run(["squeue", "-h", "-j", new_job["id"], "-o", "%l"]).stdout.strip()
    assert limit == "30:00"
    home.goto(f"{cluster.config.hub.url}/hub/home")
    home.locator("#stop").click()
    wait_for(lambda: not cluster.jobs(user), 40, "the job's end")


def _logged_in(cluster, name):
    user = User(cluster, name)
    user.login()
    return user
