"""The scripts of form and job page in a real browser, with answers that a cluster gives seldom."""

import json
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect

import carme_spawner
from carme.predict.advice import Wish

ADVICE = Path(carme_spawner.__file__).with_name("templates") / "advice.js"
SITE = "http://carme.invalid"
CHOICE = {"partition": "gpu", "nodes": "2", "gpus": "4", "hours": "1", "workload": "resnet-50"}


@pytest.fixture
def page(browser):
    context = browser.new_context()
    page = context.new_page()
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    context.close()
    assert errors == []


def answer(page, path, body):
    """Have the site answer an address; the questions asked there."""
    asked = []

    def reply(route):
        asked.append(parse_qs(urlsplit(route.request.url).query))
        route.fulfill(content_type="application/json", body=json.dumps(body))

    page.route(f"{SITE}{path}", reply)
    return asked


def show(page, html, *scripts):
    page.route(f"{SITE}/", lambda route: route.fulfill(content_type="text/html", body=html))
    page.goto(f"{SITE}/")
    for script in scripts:
        page.add_script_tag(path=script)


def figure(value, low, high, unit):
    return {"value": value, "low": low, "high": high, "unit": unit}


PREDICTION = {
    "workload": "resnet-50",
    "time": figure(3000, 1500, 6000, "s"),
    "gpu_energy": figure(540e3, 270e3, 756e3, "J"),
    "node_energy": figure(720e3, 360e3, 1.44e6, "J"),
    "emissions": figure(900, 450, 1800, "g CO2e"),
    "cost": None,
    "memory": {"fits": True, "why_not": ""},
    "provenance": {"words": "uncalibrated"},
}


def show_form(page, names=tuple(Wish.model_fields), **told):
    """The form with the advice told; what its script asked."""
    given = {"prediction": PREDICTION, "notes": [], "suggestions": [], **told}
    asked = answer(page, "/hub/api/carme/advice?**", given)
    fields = "".join(f"<input id={name} value={CHOICE.get(name, '')}>" for name in names)
    jhdata = "<script>window.jhdata = {base_url: '/hub/', xsrf_token: ''}</script>"
    show(page, f"{jhdata}<form id=spawn_form>{fields}</form><div id=advice></div>", ADVICE)
    expect(page.locator("#advice")).to_contain_text("GPU energy")
    return asked


FEWER = {"kind": "smaller", "why": "enough", "gpus": 2, "gpu_type": None, "hours": None}


def test_the_form_asks_for_all_its_nodes(page):
    [asked] = show_form(page, suggestions=[FEWER])
    assert asked["nodes"] == ["2"]
    page.get_by_role("button", name="Take 2 GPUs on each node").click()
    expect(page.locator("#gpus")).to_have_value("2")


def test_a_form_without_a_field_for_nodes_has_advice_too(page):
    names = tuple(name for name in Wish.model_fields if name != "nodes")
    [asked] = show_form(page, names, suggestions=[FEWER])
    assert "nodes" not in asked
    expect(page.get_by_role("button", name="Take 2 GPUs", exact=True)).to_be_visible()
