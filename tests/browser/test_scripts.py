"""The scripts of form and pages in a real browser, with answers that a cluster gives seldom."""

import json
import time
from html import escape
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect

import carme_spawner
from carme import service, web
from carme.requests.resource_request import AdviceRequest

STATIC = Path(service.__file__).with_name("static")
ADVICE = Path(carme_spawner.__file__).with_name("static") / "advice.js"
ELEMENTS = Path(web.__file__).with_name("static") / "elements.js"
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


def answer_requests(page, path, body):
    """Answer requests for a path with `body`; returns the list of their query parameters."""
    queries = []

    def reply(route):
        queries.append(parse_qs(urlsplit(route.request.url).query))
        route.fulfill(content_type="application/json", body=json.dumps(body))

    page.route(f"{SITE}{path}", reply)
    return queries


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


def show_form(page, names=tuple(AdviceRequest.model_fields), **overrides):
    """Open the form with this advice; returns the queries of its script."""
    wait = {"starts_now": True, "expected_at": None, "words": "can start now"}
    advice = {"wait": wait, "prediction": PREDICTION, "notes": [], "suggestions": [], **overrides}
    queries = answer_requests(page, "/hub/api/carme/advice?**", advice)
    fields = "".join(f"<input id={name} value={CHOICE.get(name, '')}>" for name in names)
    jhdata = "<script>window.jhdata = {base_url: '/hub/', xsrf_token: ''}</script>"
    sent = escape(json.dumps({"advice": list(AdviceRequest.model_fields)}))
    form = f'<form id=spawn_form><div id=carme-spawn data-fields="{sent}">{fields}</div></form>'
    show(page, f"{jhdata}{form}<div id=advice></div>", ELEMENTS, ADVICE)
    expect(page.locator("#advice")).to_contain_text("GPU energy")
    return queries


FEWER = {"kind": "smaller", "why": "enough", "gpus": 2, "gpu_type": None, "hours": None}


def test_the_form_asks_for_all_its_nodes(page):
    [query] = show_form(page, suggestions=[FEWER])
    assert query["nodes"] == ["2"]
    page.get_by_role("button", name="Use 2 GPUs on each node").click()
    expect(page.locator("#gpus")).to_have_value("2")


def test_a_form_without_a_field_for_nodes_has_advice_too(page):
    names = tuple(name for name in AdviceRequest.model_fields if name != "nodes")
    [query] = show_form(page, names, suggestions=[FEWER])
    assert "nodes" not in query
    expect(page.get_by_role("button", name="Use 2 GPUs", exact=True)).to_be_visible()


def test_the_advice_shows_the_wait(page):
    show_form(page)
    expect(page.locator("#advice")).to_contain_text("Wait none (can start now)")
    words = "would wait; Slurm's estimate of the start may change"
    show_form(page, wait={"starts_now": False, "expected_at": time.time() + 600, "words": words})
    expect(page.locator("#advice")).to_contain_text(f"({words})")
    expect(page.locator("#advice")).to_contain_text("(in about 10 min)")


def test_one_gpu_is_singular(page):
    show_form(page, suggestions=[{**FEWER, "gpus": 1, "hours": 1}])
    name = "Use 1 GPU on each node, 1 hour"
    expect(page.get_by_role("button", name=name, exact=True)).to_be_visible()


def test_an_interval_has_the_unit_of_its_figure(page):
    show_form(page)
    advice = page.locator("#advice")
    expect(advice).to_contain_text("Time 50 min (25 to 100 min)")
    expect(advice).to_contain_text("GPU energy 0.15 kWh (0.075 to 0.21 kWh)")
    expect(advice).to_contain_text("Emissions 900 g CO₂e (450 to 1,800 g CO₂e)")


def show_job(page, **comparison):
    """The page of a job that ran two hours."""
    outcome = {"measured_seconds": 7200, "measured_gpu_joules": 18e3, "within": None, **comparison}
    requested = {"gpus": {}, "cpus": 1, "memory_bytes": 2**30, "limit_seconds": 14400}
    job = {
        "name": "train", "user": "ann", "state": "RUNNING", "nodes": [], "asked": requested,
        "problem": "", "elapsed_seconds": 7200, "advice": [], "gpu_plot": None, "power_plot": None,
        "network_plot": None, "started_at": 1, "ended_at": outcome.pop("ended_at", None),
        "measured": {
            "joules": {"gpu": 180e3, "host": 360e3}, "gpu_held_seconds": 0, "emissions_grams": None,
            "network_bytes": None, "memory_peak_bytes": None,
        },
    }  # fmt: skip
    comparisons = [{"prediction": {"prediction": PREDICTION}, "remaining": None, **outcome}]
    answer_requests(page, "/services/carme/api/v1/jobs/7", {
        "job": job, "comparisons": comparisons, "notes": [],
    })  # fmt: skip
    head = "<meta name=prefix content=/services/carme><meta name=csrf content=x>"
    body = "<h1 id=title data-job=7></h1><div id=job></div><div id=plots></div>"
    show(page, head + body, ELEMENTS, STATIC / "common.js", STATIC / "job.js")
    box = page.locator("#job")
    expect(box).to_contain_text("Predicted when it was submitted")
    return box


def test_measured_has_the_unit_of_what_was_predicted(page):
    box = show_job(page)
    expect(box).to_contain_text("Time 50 min (25 to 100 min); it ran 120 min so far")
    expect(box).to_contain_text("0.15 kWh (0.075 to 0.21 kWh); measured 0.005 kWh")
    expect(box).to_contain_text("0.15 kWhGPU 0.05 kWh")


def test_only_what_runs_ran_so_far(page):
    box = show_job(page, ended_at=7201)
    expect(box).to_contain_text("it ran 120 min")
    expect(box).not_to_contain_text("so far")


def test_nothing_left_has_the_unit_of_what_was_predicted(page):
    box = show_job(page, remaining=figure(0, 0, 2400, "s"))
    expect(box).to_contain_text("Left: 0 min (0 to 40 min)")


PLAN_PREDICTION = {
    **PREDICTION, "hardware": "T4", "gpus": 1, "batch": 64, "samples_per_second": 10,
    "whole_node_energy": figure(1.44e6, 720e3, 2.88e6, "J"), "limit": None, "phases": [],
    "step_time": figure(1, 1, 1, "s"), "idle": {"share": 0.1}, "notes": [],
    "average_gpu_power": figure(60, 50, 70, "W"), "peak_gpu_power": figure(70, 60, 80, "W"),
    "average_node_power": figure(90, 80, 99, "W"),
    "memory": {"fits": True, "needed_bytes": 2**30, "capacity_bytes": 2**34, "why_not": "",
               "parts_bytes": {"weights": 2**29, "activations": 2**29, "data": 0}},
    "provenance": {"words": "uncalibrated", "calibrated": False},
}  # fmt: skip


def show_plan(page, gpus):
    """The plan page, below a path, of a cluster with these GPUs."""
    prefix = "/jupyter/services/carme"
    answers = {
        "workloads": {"items": [{"name": "resnet-50", "title": "ResNet-50", "own": False}]},
        "cluster": {"partitions": [{"name": "gpu", "gpus": gpus}]},
        "predictions": {"prediction": PLAN_PREDICTION},
        "coverage": {"items": [], "meant": 0.9},
    }
    for name, body in answers.items():
        answer_requests(page, f"{prefix}/api/v1/{name}", body)
    inputs = ("gpus", "batch", "epochs", "samples", "precision")
    html = "".join(f"<input id={name} value=1>" for name in inputs)
    html += "<input id=onnx type=file><input id=own-name><input id=dimensions>"
    html += "<form id=request><select id=workload></select></form><button id=upload></button>"
    html += "<div id=predictions></div><div id=upload-status></div>"
    head = f"<meta name=prefix content={prefix}><meta name=csrf content=x>"
    show(page, head + html, ELEMENTS, STATIC / "common.js", STATIC / "plan.js")
    return page.locator("#predictions tbody tr")


def test_the_plan_shows_charged_and_whole_node_energy_below_a_path(page):
    row = show_plan(page, [{"type": "t4", "total": 4}])
    expect(row).to_contain_text("t4 (gpu)")
    titles = page.locator("#predictions thead th").all_inner_texts()
    cells = dict(zip(titles[1:], row.locator("td strong").all_inner_texts(), strict=False))
    assert cells["Charged energy"] == "0.2 kWh"
    assert cells["Whole-node energy"] == "0.4 kWh"


@pytest.mark.parametrize(
    ("file", "path"), [("net.onnx", "onnx?name=net&dimensions="), ("net.json", "huggingface")]
)
def test_an_upload_shows_what_its_workload_leaves_out(page, file, path):
    show_plan(page, [{"type": "t4", "total": 4}])
    warning = "operator Swirl is unknown: 3 % of the elements moved"
    answer = {"workload": {"name": "net", "warnings": [warning]}}
    answer_requests(page, f"/jupyter/services/carme/api/v1/workloads/{path}", answer)
    page.locator("#onnx").set_input_files(
        {"name": file, "mimeType": "application/octet-stream", "buffer": b"{}"}
    )
    page.locator("#upload").click()
    expect(page.locator("#upload-status")).to_contain_text("Saved as net.")
    expect(page.locator("#upload-status p")).to_have_text(warning)


def test_the_plan_of_a_cluster_without_gpus_says_so(page):
    row = show_plan(page, [])
    expect(row).to_contain_text("A100")
    expect(page.locator("#predictions")).to_contain_text("This cluster has no GPUs.")


def test_jobs_that_are_shown_stay_if_more_cannot_be_read(page):
    path = "/services/carme/api/v1"
    job = {
        "id": 7, "name": "train", "user": "ann", "state": "COMPLETED", "elapsed_seconds": 60,
        "asked": {"gpus": {"t4": 2}}, "measured": None,
    }  # fmt: skip
    answer_requests(page, f"{path}/coverage", {"items": [], "meant": 0.9})
    answer_requests(page, f"{path}/jobs?**cursor=0", {"items": [job], "next": "25", "problem": ""})
    problem = {"status": 503, "content_type": "application/problem+json"}
    page.route(
        f"{SITE}{path}/jobs?**cursor=25",
        lambda route: route.fulfill(**problem, body=json.dumps({"detail": "not now"})),
    )
    head = "<meta name=prefix content=/services/carme><meta name=csrf content=x>"
    body = "<div id=jobs></div><div id=more-problem></div><button id=more hidden>More</button>"
    scripts = (ELEMENTS, STATIC / "common.js", STATIC / "jobs.js")
    show(page, f"{head}{body}<div id=coverage></div>", *scripts)
    page.get_by_role("button", name="More").click()
    expect(page.get_by_role("alert")).to_have_text("not now")
    expect(page.locator("#jobs tbody tr")).to_contain_text("2 t4")


def test_the_example_of_the_api_page_names_this_host(page):
    head = "<meta name=prefix content=/services/carme><meta name=csrf content=x>"
    body = "<pre>curl <span class=origin></span>/services/carme</pre>"
    show(page, head + body, ELEMENTS, STATIC / "common.js")
    expect(page.locator("pre")).to_have_text(f"curl {SITE}/services/carme")
