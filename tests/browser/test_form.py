"""The form in a real browser: choices that depend on each other, live messages, a phone."""

import re

import pytest
from playwright.sync_api import expect

from support.browser import choose, fill_form, login
from support.hub import User
from support.slurm_live import view

ACCOUNT = "ct-shared"


@pytest.fixture(scope="module")
def account(cluster):
    ann = cluster.users[0]
    where = f"cluster={cluster.config.cluster.name}"
    cluster.run(
        ["sacctmgr", "-i", "add", "account", ACCOUNT, where, "MaxWall=02:00:00"], check=True
    )
    arguments = [ann, f"account={ACCOUNT}", where, "qos=short"]
    cluster.run(["sacctmgr", "-i", "add", "user", *arguments], check=True)
    cluster.stop("view")
    cluster.start("view")
    User.fresh(cluster, ann)
    view(cluster, cluster.config.hub.user, "rights", user=ann)
    yield ACCOUNT
    cluster.run(["sacctmgr", "-i", "delete", "user", ann, f"account={ACCOUNT}"])
    cluster.run(["sacctmgr", "-i", "delete", "account", ACCOUNT])
    # A new view reads accounts at once; a running one would offer this one for some minutes.
    cluster.stop("view")
    cluster.start("view")


def open_form(cluster, browser, width, height):
    page = browser.new_context(viewport={"width": width, "height": height}).new_page()
    errors = []
    page.on("pageerror", lambda error: errors.append(error))
    login(page, cluster, cluster.users[0])
    fill_form(page)
    return page, errors


def test_choices_that_depend_on_each_other(cluster, browser, account, screenshots):
    page, errors = open_form(cluster, browser, 1200, 900)
    outlook, panel = page.locator("#outlook"), page.locator("#cluster")
    expect(outlook).to_contain_text("can start now", timeout=20_000)
    for pattern in (
        r"virtual-a100.*\d of 4 free, up to \d on one node",
        r"virtual-t4",
        r"\d+ of 16 cores free",
        r"\d+ of \d+ GiB of memory free",
        r"[Nn]o job waits|\d+ jobs? waits?",
        r"Updated \d+ s ago",
    ):
        expect(panel).to_contain_text(re.compile(pattern))
    expect(page.locator("#qos option")).to_have_count(2)
    choose(page, qos="short")
    expect(page.locator("#qos-limits")).to_contain_text("up to 1 h")
    choose(page, hours="1.5")
    expect(page.locator("#hours-problem")).to_have_text("QoS short allows at most 1 h")
    expect(page.locator("#hours")).to_have_attribute("aria-describedby", "hours-problem")
    screenshots(page, "spawn-form-limits")
    choose(page, qos="normal")
    expect(page.locator("#hours-problem")).to_have_count(0)
    choose(page, account=account)
    expect(page.locator("#qos-row")).to_be_hidden()
    expect(page.locator("#hours-problem")).to_have_text("QoS short allows at most 1 h")
    page.get_by_role("button", name="Start").click()
    expect(page.locator("#hours-problem")).to_have_text("QoS short allows at most 1 h")
    expect(page.locator("#hours")).to_have_value("1.5")
    expect(page.locator("#account")).to_have_value(account)
    assert errors == []
    page.context.close()


def test_maintenance_and_lost_nodes_are_shown(cluster, browser, account):
    page, _ = open_form(cluster, browser, 1200, 900)
    when = ["StartTime=now+4hours", "Duration=60", "Nodes=gpu02", "Flags=MAINT", "Users=root"]
    reservation = cluster.run(
        ["scontrol", "create", "reservation", "ReservationName=ct-care", *when]
    )
    assert reservation.returncode == 0, reservation.stderr
    down = ["scontrol", "update", "NodeName=gpu02", "State=DRAIN", "Reason=test"]
    cluster.run(down, check=True)
    try:
        panel = page.locator("#cluster")
        # Reservations come with the view's own poll, every half minute.
        expect(panel).to_contain_text("Maintenance of 1 node from", timeout=60_000)
        expect(panel).to_contain_text("1 of 2 nodes not available: gpu02", timeout=30_000)
        choose(page, gpus="4", gpu_type="virtual-t4")
        expect(page.locator("#outlook")).not_to_contain_text("can start now", timeout=20_000)
    finally:
        cluster.run(["scontrol", "delete", "ReservationName=ct-care"])
        cluster.run(["scontrol", "update", "NodeName=gpu02", "State=RESUME"])
    page.context.close()


def test_on_a_phone_and_by_keyboard(cluster, browser, account):
    page, _ = open_form(cluster, browser, 390, 844)
    expect(page.locator("#outlook")).not_to_have_text("…", timeout=20_000)
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 390, "nothing sticks out"
    boxes = {name: page.locator(name).bounding_box() for name in ("#outlook", "#cluster")}
    button = page.get_by_role("button", name="Start").bounding_box()
    assert boxes["#outlook"]["y"] < button["y"] < boxes["#cluster"]["y"]
    # From the first preset to the button with the Tab key, in visual order.
    page.locator("#presets button").first.focus()
    focused = []
    for _ in range(30):
        page.keyboard.press("Tab")
        focused.append(page.evaluate("document.activeElement.id || document.activeElement.type"))
        if focused[-1] == "submit":
            break
    names = [name for name in focused if name in ("partition", "gpus", "hours", "account", "image")]
    assert names == ["partition", "gpus", "hours", "account", "image"]
    assert focused[-1] == "submit"
    page.context.close()


def test_what_is_free_changes_while_the_page_stays(cluster, browser, account):
    """Another user takes three GPUs; the open form updates itself."""
    page, errors = open_form(cluster, browser, 1200, 900)
    page.evaluate("window.carmeStayed = true")
    choose(page, gpus="2", gpu_type="virtual-t4")
    expect(page.locator("#cluster")).to_contain_text(
        re.compile("virtual-t4.*4 of 4 free"), timeout=30_000
    )
    expect(page.locator("#outlook")).to_contain_text("can start now", timeout=20_000)
    chosen = {name: page.input_value(f"#{name}") for name in ("partition", "gpus", "gpu_type")}
    assert chosen == {"partition": "gpu", "gpus": "2", "gpu_type": "virtual-t4"}
    options = ["-p", "gpu", "--gres=gpu:virtual-t4:3", "--mem=100", "-D", "/tmp", "-o", "/dev/null"]
    other = cluster.run_as(
        cluster.users[1], ["sbatch", "--parsable", *options, "--wrap", "sleep 300"]
    ).stdout.strip()
    try:
        expect(page.locator("#cluster")).to_contain_text(
            re.compile("virtual-t4.*1 of 4 free"), timeout=90_000
        )
        expect(page.locator("#outlook")).not_to_contain_text("can start now", timeout=60_000)
        assert page.evaluate("window.carmeStayed"), "the page was not loaded again"
    finally:
        cluster.run(["scancel", other])
    assert errors == []
    page.context.close()
