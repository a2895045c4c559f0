"""The API as a program uses it."""

import pytest
from sqlalchemy.exc import SQLAlchemyError

from carme.jobs.models import JobList
from carme.service.store import WorkloadRow
from carme.slurm.models import Reservation
from support.service import gpu_nodes

RESNET = {"workload": "resnet-50", "hardware": {"gpus": "8xV100"}}


def test_a_prediction_has_intervals_units_and_provenance(service):
    prediction = service.ask("POST", "/predictions", body=RESNET).json["prediction"]
    for name in ("time", "gpu_energy", "node_energy", "average_gpu_power", "emissions"):
        figure = prediction[name]
        assert figure["low"] < figure["value"] < figure["high"]
        assert figure["unit"]
    assert prediction["provenance"]["source"] == "data sheet"
    assert "uncalibrated" in prediction["provenance"]["words"]
    assert prediction["time"]["high"] / prediction["time"]["low"] == pytest.approx(4)
    assert prediction["memory"]["fits"]
    assert prediction["limit"]["limit"] == "compute"
    assert {b["resource"] for b in prediction["bursts"]} >= {"gpu_utilization", "network_sent"}
    assert sum(phase["share"] for phase in prediction["phases"]) == pytest.approx(1)


def test_the_partition_of_this_cluster_is_hardware(service):
    body = {"workload": "resnet-50", "hardware": {"partition": "gpu", "gpu_type": "virtual-t4"}}
    prediction = service.ask("POST", "/predictions", body=body).json["prediction"]
    assert (prediction["gpu"], prediction["gpus"]) == ("t4", 1)
    body["hardware"] = {"partition": "cpu", "count": 2}
    assert service.ask("POST", "/predictions", body=body).json["prediction"]["gpu"] == "cpu-core"


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"workload": "resnet-51", "hardware": {"gpus": "8xV100"}}, 404, "resnet-51"),
        ({"workload": "../../etc/passwd.toml", "hardware": {"gpus": "8xV100"}}, 422, "workload"),
        ({"workload": "resnet-50", "hardware": {}}, 422, "gpus"),
        ({"workload": "resnet-50", "hardware": {"gpus": "8xV1000"}}, 404, "v1000"),
        ({"workload": "resnet-50", "hardware": {"partition": "nope"}}, 422, "gpu, cpu"),
        ({**RESNET, "plan": {"kind": "synchronous", "gpus": 9}}, 422, "9 GPUs"),
        ({**RESNET, "plan": {"kind": "synchronous", "batch": 0}}, 422, "batch"),
        ({**RESNET, "strange": 1}, 422, "strange"),
        ({**RESNET, "calibration": "f" * 24}, 404, "calibration"),
    ],
)
def test_a_wrong_request_is_told_what_to_change(service, body, status, says):
    answer = service.ask("POST", "/predictions", body=body)
    assert answer.status_code == status
    assert answer.mimetype == "application/problem+json"
    problem = answer.json
    assert says in str(problem)
    assert problem["hint"]


def layers(repeat):
    return {"name": "deep", "dataset": {"samples": 1000},
            "layers": [{"kind": "dense", "inputs": 8, "outputs": 8, "repeat": repeat}]}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"workload": layers(10**12)}, "layers"),
        ({"plan": {"kind": "synchronous", "jitter": 1, "sample_steps": 100_000}}, "sample_steps"),
        ({"plan": {"kind": "synchronous", "gpus": 8, "pipeline": 8, "batch": 10**6}}, "micro"),
        ({"plan": {"kind": "averaging", "packages": 10**6}}, "packages"),
        ({"plan": {"kind": "parameter-server"}, "hardware": {"gpus": "9000xV100"}}, "9,000"),
        ({"hardware": {"gpus": "900000xV100"}}, "900000"),
        ({"plan": {"kind": "averaging", "gpus": 8}, "workload": "bert-base"}, "packages"),
        ({"plan": {"kind": "synchronous", "gpus": 400, "pipeline": 400, "batch": 9000},
          "hardware": {"gpus": "400xV100"}}, "400 stages"),
        ({"plan": {"kind": "synchronous", "jitter": 1, "sample_steps": 10_000},
          "hardware": {"gpus": "90000xV100"}}, "900,000,000 random"),
        ({"plan": {"kind": "asynchronous", "gradient_seconds": 1e-9, "update_seconds": 1e9}},
         "gradients"),
    ],
)  # fmt: skip
def test_what_would_take_long_is_refused(service, changes, says):
    answer = service.ask("POST", "/predictions", body={**RESNET, **changes})
    assert answer.status_code == 422
    assert says in answer.json["detail"]


@pytest.mark.parametrize(
    ("plan", "vary", "says"),
    [
        ({"kind": "averaging"}, {"gpus": [2, 8]}, "packages"),
        ({"kind": "synchronous", "batch": 9000}, {"gpus": [400], "pipeline": ["400"]}, "stages"),
        ({"kind": "synchronous", "jitter": 1}, {"gpus": [8, 10**400]}, "random"),
        ({"kind": "synchronous"}, {"gpus": [100_000], "jitter": [0.1]}, "random"),
    ],
)
def test_ranges_that_would_take_long_are_refused(service, plan, vary, says):
    answer = service.ask("POST", "/pareto", body={**RESNET, "plan": plan, "vary": vary})
    assert answer.status_code == 422
    assert says in answer.json["detail"]


def test_a_few_points_that_take_long_are_a_task(service):
    plan = {"kind": "synchronous", "batch": 4000, "jitter": 0.1}
    body = {**RESNET, "plan": plan, "vary": {"gpus": [1000, 2000, 4000]}}
    answer = service.ask("POST", "/pareto", body=body)
    assert answer.status_code == 202
    service.ask("DELETE", f"/tasks/{answer.json['id']}")


@pytest.mark.parametrize(
    ("plan", "count", "says"),
    [
        ({}, 60, "60 different pairs"),
        ({"jitter": 0.1, "sample_steps": 10_000}, 40, "takes too long"),
        ({"jitter": 0.1, "sample_steps": 100_000}, 3, "sample_steps"),
    ],
)
def test_a_fit_that_would_take_long_is_refused(service, plan, count, says):
    steps = [{"batch": 64 + i, "gpus": 8, "seconds": 0.2} for i in range(count)]
    answer = service.ask("POST", "/calibrations", body={**RESNET, "plan": plan, "steps": steps})
    assert answer.status_code == 422
    assert says in answer.json["detail"]


def test_kept_predictions_are_paged_and_deleted(service):
    for _ in range(3):
        service.ask("POST", "/predictions", body={**RESNET, "keep": True})
    first = service.ask("GET", "/predictions?limit=2").json
    assert len(first["items"]) == 2
    rest = service.ask("GET", f"/predictions?limit=2&cursor={first['next']}").json
    assert len(rest["items"]) == 1
    assert rest["next"] is None
    one = first["items"][0]["id"]
    assert service.ask("DELETE", f"/predictions/{one}").status_code == 204
    assert service.ask("GET", f"/predictions/{one}").status_code == 404


def test_a_small_front_comes_at_once_with_the_wish(service):
    body = {**RESNET, "vary": {"gpus": [1, 2, 4, 8]},
            "wish": {"minimize": "energy", "at_most": {"time": 200000}}}  # fmt: skip
    answer = service.ask("POST", "/pareto", body=body)
    assert answer.status_code == 200
    points = answer.json["points"]
    front = [p for p in points if p["on_front"]]
    assert (len(points), answer.json["impossible"]) == (3, 1)
    assert "does not fit" in answer.json["reasons"][0]
    assert front
    assert answer.json["choice"]["time"] <= 200000


def test_the_gpus_of_partitions_are_compared(service):
    gpus = ["gpu:virtual-a100", "gpu:virtual-t4", "a100", None]
    hardware = {"partition": "gpu", "gpu_type": "virtual-a100"}
    body = {**RESNET, "hardware": hardware, "vary": {"gpu": gpus, "batch": [64]}}
    answer = service.ask("POST", "/pareto", body=body).json
    times = {p["point"]["gpu"]: p["time"] for p in answer["points"]}
    assert set(times) == set(gpus)
    assert times["gpu:virtual-a100"] == times[None] < times["gpu:virtual-t4"]
    unknown = ["gpu:h100", "nothing:here", "../a100", "a:b:c d", "8xv100", 7]
    vary = {"gpu": [*unknown, "t4"], "batch": [64]}
    answer = service.ask("POST", "/pareto", body={**RESNET, "vary": vary}).json
    assert (len(answer["points"]), answer["impossible"]) == (1, len(unknown))
    assert "virtual-a100" in " ".join(answer["reasons"])


def test_a_comparison_does_not_need_figures_of_its_first_gpu(service):
    """Explore names the first GPU as the hardware, and some GPUs of a site have no figures."""
    nodes = (*service.view.snapshot.nodes, *gpu_nodes("strange-gpu"))
    service.view.snapshot = service.view.snapshot.model_copy(update={"nodes": nodes})
    hardware = {"partition": "gpu", "gpu_type": "strange-gpu"}
    vary = {"gpu": ["gpu:strange-gpu", "gpu:virtual-t4"], "batch": [64]}
    answer = service.ask("POST", "/pareto", body={**RESNET, "hardware": hardware, "vary": vary})
    assert answer.status_code == 200, answer.json
    assert [p["point"]["gpu"] for p in answer.json["points"]] == ["gpu:virtual-t4"]
    assert "strange-gpu" in answer.json["reasons"][0]


@pytest.mark.parametrize("in_vary", [False, True])
def test_a_partition_has_no_more_gpus_than_its_nodes(service, in_vary):
    hardware = {"partition": "gpu", "gpu_type": "virtual-t4"}
    vary = {"gpus": [4, 8], "batch": [64]} | ({"gpu": ["gpu:virtual-t4"]} if in_vary else {})
    answer = service.ask("POST", "/pareto", body={**RESNET, "hardware": hardware, "vary": vary})
    assert [p["point"]["gpus"] for p in answer.json["points"]] == [4]
    assert "8 GPUs" in answer.json["reasons"][0]
    library_gpu = {**RESNET, "hardware": {"gpus": "1xT4"}, "vary": {"gpus": [4, 8], "batch": [64]}}
    answer = service.ask("POST", "/pareto", body=library_gpu)
    assert [p["point"]["gpus"] for p in answer.json["points"]] == [4, 8]


def test_a_large_front_is_a_task_with_events(service):
    body = {**RESNET, "vary": {"batch": list(range(64, 264))}}
    answer = service.ask("POST", "/pareto", body=body)
    assert answer.status_code == 202
    task = answer.json["id"]
    events = service.ask("GET", f"/tasks/{task}/events").data.decode()
    assert "event: progress" in events
    assert events.rstrip().endswith('data: {"state": "done", "done": 200, "total": 200}')
    done = service.ask("GET", f"/tasks/{task}").json
    assert done["state"] == "done"
    assert len(done["result"]["points"]) == 200
    assert service.ask("GET", f"/tasks/{task}", who="ben").status_code == 404


def test_a_task_can_be_cancelled(service):
    body = {**RESNET, "vary": {"batch": list(range(64, 5064))}}
    task = service.ask("POST", "/pareto", body=body).json["id"]
    assert service.ask("DELETE", f"/tasks/{task}").json["state"] == "cancelled"
    assert '"cancelled"' in service.ask("GET", f"/tasks/{task}/events").data.decode()


def test_a_small_task_does_not_wait_for_a_large_one(service):
    large = {**RESNET, "vary": {"batch": list(range(64, 9064))}}
    path = f"/tasks/{service.ask('POST', '/pareto', body=large).json['id']}"
    small = {**RESNET, "vary": {"batch": list(range(64, 184))}}
    task = service.ask("POST", "/pareto", who="ben", body=small).json["id"]
    with service.ask("GET", f"/tasks/{task}/events", who="ben") as events:
        assert '"done": 120' in events.data.decode()
    assert service.ask("GET", path).json["state"] == "running"
    assert service.ask("DELETE", path).json["state"] == "cancelled"


def test_few_streams_are_open_at_a_time(service):
    body = {**RESNET, "vary": {"batch": list(range(64, 9064))}}
    path = f"/tasks/{service.ask('POST', '/pareto', body=body).json['id']}"
    mine = [service.ask("GET", f"{path}/events") for _ in range(2)]
    assert [answer.status_code for answer in mine] == [200, 200]
    refused = service.ask("GET", f"{path}/events")
    assert refused.status_code == 429
    assert refused.mimetype == "application/problem+json"
    assert int(refused.headers["Retry-After"]) > 0
    assert "GET the task" in refused.json["hint"]
    assert service.ask("GET", path).json["state"] == "running"
    mine[0].close()
    with service.ask("GET", f"{path}/events") as again:
        assert again.status_code == 200
    for name in "abcde":  # other people's, up to what there is for all
        assert service.context.streams.enter(name).passed.done()
    mine[1].close()
    assert service.context.streams.enter("f").passed.done()
    assert service.ask("GET", f"{path}/events").status_code == 503
    service.ask("DELETE", path)


def test_advice_for_a_declared_workload(service):
    body = {"partition": "gpu", "gpus": 4, "gpu_type": "virtual-a100", "hours": 2,
            "workload": "resnet-50"}  # fmt: skip
    advice = service.ask("POST", "/advice", body=body).json
    assert advice["wait"]["starts_now"]
    assert advice["prediction"]["time"]["unit"] == "s"
    assert [s["kind"] for s in advice["suggestions"]] == ["time"]
    body.update(gpus=0, workload="")
    assert service.ask("POST", "/advice", body=body).json["prediction"] is None


def test_advice_for_a_partition_without_gpus_counts_cores(service):
    body = {"partition": "cpu", "cpus": 2, "hours": 2, "workload": "resnet-50"}
    prediction = service.ask("POST", "/advice", body=body).json["prediction"]
    assert (prediction["gpu"], prediction["gpus"]) == ("cpu-core", 2)


def test_advice_inside_a_reservation_is_for_its_gpus(service):
    a100, *t4 = gpu_nodes("virtual-a100", "virtual-t4", "virtual-t4")
    course = Reservation(name="course", nodes=(a100.name,), users=("ann",))
    changes = {"nodes": (a100, *t4), "reservations": (course,)}
    service.view.snapshot = service.view.snapshot.model_copy(update=changes)
    body = {"partition": "gpu", "gpus": 1, "reservation": "course", "workload": "resnet-50"}
    advice = service.ask("POST", "/advice", body=body).json
    assert advice["prediction"]["gpu"] == "a100"
    assert not [other for other in advice["suggestions"] if other["gpu_type"]]


def test_cluster_and_hardware(service):
    cluster = service.ask("GET", "/cluster").json
    assert [p["name"] for p in cluster["partitions"]] == ["gpu", "cpu"]
    here = {i["name"]: i["here"] for i in service.ask("GET", "/hardware").json["items"]}
    assert here["a100"] == ["virtual-a100"]


def test_the_last_page_of_jobs_names_no_next(service):
    service.view.listed = JobList(left_out=1000)
    assert service.ask("GET", "/jobs?limit=25&cursor=375").json["next"] == "400"
    assert service.ask("GET", "/jobs?limit=25&cursor=400").json["next"] is None


def test_own_workloads_are_kept_per_user(service):
    mine = service.ask("GET", "/workloads/resnet-50").json["workload"] | {"name": "mine"}
    assert service.ask("POST", "/workloads", body=mine).status_code == 201
    assert service.ask("GET", "/workloads/mine").json["own"]
    assert service.ask("GET", "/workloads/mine", who="ben").status_code == 404
    body = {"workload": "mine", "hardware": {"gpus": "1xV100"}}
    assert service.ask("POST", "/predictions", body=body).status_code == 200
    assert service.ask("POST", "/predictions", who="ben", body=body).status_code == 404
    assert service.ask("DELETE", "/workloads/mine", who="ben").status_code == 404
    assert service.ask("DELETE", "/workloads/mine").status_code == 204
    taken = service.ask("POST", "/workloads", body={**mine, "name": "resnet-50"})
    assert taken.status_code == 422


def test_a_workload_that_cannot_be_replaced_is_kept(service):
    mine = service.ask("GET", "/workloads/resnet-50").json["workload"] | {"name": "mine"}
    for _ in range(2):
        assert service.ask("POST", "/workloads", body=mine).status_code == 201
    store = service.context.store
    [old] = store.page(WorkloadRow, "ann", 10, None)
    not_json = WorkloadRow(user="ann", name="mine", body={"layers": object()})
    with pytest.raises(SQLAlchemyError):
        store.add(not_json, replaces=old)
    assert service.ask("GET", "/workloads/mine").json["own"]


def test_a_fit_is_used_by_predictions_of_its_owner_only(service):
    step = {"batch": 256, "gpus": 8, "seconds": 0.2, "gpu_watts": 200}
    body = {**RESNET, "steps": [step] * 20}
    calibration = service.ask("POST", "/calibrations", body=body)
    assert calibration.status_code == 201, calibration.json
    prediction = service.ask("POST", "/predictions", body=RESNET).json["prediction"]
    assert prediction["provenance"]["source"] == "fit"
    assert prediction["provenance"]["calibration"] == calibration.json["id"]
    assert prediction["step_time"]["value"] == pytest.approx(0.2, rel=0.02)
    assert prediction["average_gpu_power"]["value"] == pytest.approx(200, rel=0.02)
    assert prediction["time"]["high"] / prediction["time"]["low"] < 1.3
    ben = service.ask("POST", "/predictions", who="ben", body=RESNET).json["prediction"]
    assert ben["provenance"]["source"] == "data sheet"
    front = service.ask("POST", "/pareto", body={**RESNET, "vary": {"batch": [256]}}).json
    assert front["provenance"]["source"] == "fit"
    vary = {"gpu": ["v100", "t4"]}
    mixed = service.ask("POST", "/pareto", body={**RESNET, "vary": vary}).json
    assert mixed["provenance"]["source"] == "data sheet"
    assert f"v100: {front['provenance']['words']}" in mixed["provenance"]["words"]
    compared = {p["point"]["gpu"]: p["time"] for p in mixed["points"]}
    single = service.ask("POST", "/pareto", body={**RESNET, "vary": {"gpus": [8]}}).json
    assert compared["v100"] == single["points"][0]["time"], "with the fit"
    plain = service.ask("POST", "/predictions", body={**RESNET, "calibration": "none"}).json
    assert plain["prediction"]["provenance"]["source"] == "data sheet"


def test_the_openapi_document_holds_every_address(service):
    document = service.ask("GET", "/openapi.json", who="").json
    assert document["openapi"] == "3.1.0"
    assert {"/predictions", "/pareto", "/advice", "/jobs", "/jobs/{job_id}", "/cluster",
            "/hardware", "/workloads", "/calibrations"} <= set(document["paths"])  # fmt: skip
