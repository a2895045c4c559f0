"""The service's pages in a real browser: plan, explore, the form's advice, a running job."""

import pytest
from playwright.sync_api import expect

from support.browser import fill_form, login
from support.cluster import wait_for
from support.hub import User

pytestmark = pytest.mark.cluster
PAGES = "/services/carme"


def people_page(browser, cluster, user, **how):
    """A page of a user who is logged in; errors of its scripts fail the test."""
    context = browser.new_context(viewport={"width": 1200, "height": 850}, **how)
    context.set_default_timeout(60_000)
    page = context.new_page()
    page.carme_errors = []
    page.on("pageerror", lambda error: page.carme_errors.append(str(error)))
    login(page, cluster, user)
    page.wait_for_url("**/hub/**")
    return page


@pytest.fixture
def ann(browser, cluster):
    User.fresh(cluster, cluster.users[0])
    page = people_page(browser, cluster, cluster.users[0])
    yield page
    assert page.carme_errors == []
    page.context.close()
    User.fresh(cluster, cluster.users[0])


def test_plan(cluster, ann, screenshots):
    ann.goto(f"{cluster.config.hub.url}{PAGES}/plan")
    rows = ann.locator("#predictions tbody tr")
    expect(rows).to_have_count(2, timeout=60_000)
    ann.fill("#gpus", "4")
    ann.fill("#epochs", "1")
    ann.get_by_role("button", name="Predict").click()
    expect(ann.get_by_role("heading", name="virtual-a100 of partition gpu: 4 GPUs")).to_be_visible()
    expect(rows.first).to_contain_text("kWh")
    expect(rows.first).to_contain_text(" to ")
    expect(ann.locator("#predictions")).to_contain_text("Whole-node energy")
    expect(ann.locator("#predictions")).to_contain_text("uncalibrated")
    screenshots(ann, "service-plan")


def points(page):
    """The number of points in all traces of the plot."""
    traces = "document.getElementById('plot').data.filter((trace) => trace.customdata)"
    return page.evaluate(f"{traces}.reduce((sum, trace) => sum + trace.x.length, 0)")


def colours(page):
    """The colour of each GPU's trace, by its name."""
    traces = "document.getElementById('plot').data.filter((trace) => trace.customdata)"
    return page.evaluate(
        f"Object.fromEntries({traces}.map((trace) => [trace.name, trace.marker.color]))"
    )


def test_explore_hover_filter_pin_and_a_link_that_reopens_it(browser, cluster, ann, screenshots):
    with ann.expect_request("**/api/v1/pareto") as request_info:
        ann.goto(f"{cluster.config.hub.url}{PAGES}/explore")
    expect(ann.locator("#progress")).to_contain_text("on the Pareto front", timeout=60_000)
    expect(ann.locator("#plot .main-svg").first).to_be_visible()
    # The GPUs of this cluster by partition, each with its own colour.
    body = request_info.value.post_data_json
    assert set(body["vary"]["gpu"]) == {"gpu:virtual-a100", "gpu:virtual-t4"}
    assert body["hardware"]["partition"] == "gpu"
    assert body["vary"]["gpus"] == [1, 2, 4], "no more than a type has"
    expect(ann.locator("#progress")).not_to_contain_text("GPUs on gpu-virtual")
    by_gpu = colours(ann)
    assert set(by_gpu) == set(body["vary"]["gpu"])
    assert len(set(by_gpu.values())) == len(by_gpu)
    everything = points(ann)
    ann.locator("#plot .scatterlayer .trace").nth(1).locator(".point").first.hover(force=True)
    expect(ann.locator(".hoverlayer .hovertext")).to_contain_text("number of GPUs:")
    ann.locator("#plot .scatterlayer .trace").nth(1).locator(".point").first.click(force=True)
    expect(ann.locator("#pinned tbody tr")).to_have_count(1)
    ann.evaluate("scrollTo(0, 0)")
    screenshots(ann, "service-explore")
    slider = ann.locator("#most-energy")
    slider.focus()
    for _ in range(60):
        slider.press("ArrowLeft")
    fewer = points(ann)
    assert 0 < fewer < everything
    assert colours(ann) == by_gpu
    with ann.expect_download() as download:
        ann.get_by_role("button", name="Download CSV").click()
    assert len(download.value.path().read_text().splitlines()) == fewer + 1
    with ann.expect_download() as download:
        ann.get_by_role("button", name="Download PNG").click()
    assert download.value.path().read_bytes()[:4] == b"\x89PNG"
    ben = people_page(browser, cluster, cluster.users[1], color_scheme="dark")
    ben.goto(ann.url)
    expect(ben.locator("#progress")).to_contain_text("on the Pareto front", timeout=60_000)
    assert points(ben) == fewer
    expect(ben.locator("#pinned tbody tr")).to_have_count(ann.locator("#pinned tbody tr").count())
    assert ben.carme_errors == []
    ben.context.close()


def test_explore_asks_where_it_cannot_follow(cluster, ann):
    """Without a free event stream, as under load, the page polls the task."""
    refused = {"status": 503, "content_type": "application/problem+json", "body": "{}"}
    ann.route("**/tasks/*/events", lambda route: route.fulfill(**refused))
    ann.goto(f"{cluster.config.hub.url}{PAGES}/explore")
    progress = ann.locator("#progress")
    expect(progress).to_contain_text("on the Pareto front", timeout=60_000)
    ann.fill("#gpu", "a100")
    ann.fill("#gpus", "8,16")
    ann.fill("#batch", ",".join(map(str, range(64, 1064))))
    ann.get_by_role("button", name="Simulate").click()
    expect(progress).to_contain_text("2000 points", timeout=120_000)


def test_advice_in_the_form_then_the_page_of_the_job(cluster, ann, screenshots):
    ann.goto(f"{cluster.config.hub.url}/hub/spawn")
    fill_form(ann, gpu_type="virtual-a100", workload="resnet-50", epochs="1")
    advice = ann.locator("#advice")
    expect(advice).to_contain_text("GPU energy", timeout=30_000)
    expect(advice).to_contain_text(" to ")
    screenshots(ann, "service-form")
    ann.get_by_role("button", name="Start", exact=True).click()
    user = cluster.users[0]
    [job] = wait_for(lambda: cluster.jobs(user), 60, "a job")
    wait_for(lambda: cluster.jobs(user)[0]["state"] == "RUNNING", 60, "its start")
    link = ann.get_by_role("link", name=job["id"])

    def job_is_listed():
        """The view may be seconds behind `squeue`, and the page shows what it had when opened."""
        ann.goto(f"{cluster.config.hub.url}{PAGES}/jobs")
        expect(ann.locator("#jobs")).not_to_have_text("…")
        return link.count()

    wait_for(job_is_listed, 60, "the job in the list")
    link.click()
    expect(ann.locator("#job")).to_contain_text("Predicted when it was submitted", timeout=60_000)
    expect(ann.locator("#job")).to_contain_text("Left:")
    # The first values appear after two intervals of exporter and Prometheus.
    expect(ann.locator("#job")).to_contain_text("Charged energy", timeout=120_000)
    expect(ann.locator("#power .main-svg").first).to_be_visible(timeout=120_000)
    expect(ann.locator("#network .main-svg").first).to_be_visible(timeout=120_000)
    # The page renews itself; a line needs two values.
    has_network = (
        "document.getElementById('network').data[0].y.filter((v) => v !== null).length > 1"
    )
    wait_for(lambda: ann.evaluate(has_network), 120, "two values of the network")
    ann.set_viewport_size({"width": 1200, "height": 1750})
    screenshots(ann, "service-job")


def test_cluster_and_api_on_a_phone(browser, cluster):
    page = people_page(browser, cluster, cluster.users[0], color_scheme="dark")
    page.set_viewport_size({"width": 390, "height": 800})
    for name, text in (("cluster", "of 4 free"), ("api", "/predictions"), ("plan", "kWh")):
        page.goto(f"{cluster.config.hub.url}{PAGES}/{name}")
        expect(page.locator("main")).to_contain_text(text, timeout=60_000)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 390, f"{name} is {wide} pixels wide"
    assert page.carme_errors == []
    page.context.close()
