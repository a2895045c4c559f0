import math
import re

import pytest

from carme.config import Config, SessionSettings
from carme.requests import placement
from carme.requests.slurm_user import SlurmUser
from carme.requests.user_limits import with_allowed_hours
from carme_spawner import form, options

ANN = SlurmUser("ann")

GOOD = {
    "partition": "gpu",
    "nodes": 1,
    "gpus": 1,
    "gpu_type": "",
    "cpus": 2,
    "memory_gb": 4,
    "hours": 2,
    "image": "base",
    "own_image": "",
    "application": "",
    "project": "",
    "account": "",
    "qos": "",
    "reservation": "",
}


def problems_of(raw, snapshot, catalogue):
    choice, problems = options.SessionOptions.parse({**GOOD, **raw})
    if choice is None:
        return problems
    cluster_problems = placement.all_problems(choice, snapshot, ANN, now=0)
    return {**cluster_problems, **options.option_problems(choice, catalogue)}


def test_the_defaults_are_a_good_choice(snapshot, catalogue):
    raw = options.defaults(SessionSettings(), snapshot, catalogue)
    assert raw["partition"] == "gpu"
    assert problems_of(raw, snapshot, catalogue) == {}


@pytest.mark.parametrize("minutes", [1, 5, 10, 50, 100, 100 * 60 + 1])
def test_the_first_time_is_one_that_the_partition_allows(minutes, snapshot, catalogue):
    gpu, *others = snapshot.partitions
    short = gpu.model_copy(update={"max_seconds": 60 * minutes})
    narrow = snapshot.model_copy(update={"partitions": (short, *others)})
    values = options.defaults(SessionSettings(default_hours=200), narrow, catalogue)
    raw = with_allowed_hours(values, {}, narrow, ANN, now=0)
    choice, _ = options.SessionOptions.parse(raw)
    assert 60 * minutes - 36 < choice.seconds <= 60 * minutes
    assert placement.all_problems(choice, narrow, ANN, now=0) == {}
    html = form.render(Config(), narrow, catalogue, raw, {}, user=ANN, now=0)
    assert f"gpu (up to {raw['hours']:g} h)" in html
    [least] = re.findall(r'id="hours" name="hours" step="any" min="([0-9.]+)" max="8760"', html)
    assert float(least) <= raw["hours"]


def test_the_default_time_is_that_of_the_named_partition(snapshot, catalogue):
    gpu, cpu, *others = snapshot.partitions
    short = gpu.model_copy(update={"max_seconds": 1800})
    long = cpu.model_copy(update={"max_seconds": 24 * 3600})
    changed = snapshot.model_copy(update={"partitions": (short, long, *others)})
    values = options.defaults(SessionSettings(default_hours=2), changed, catalogue)
    for name, hours in (("gpu", 0.5), ("cpu", 2)):
        allowed = with_allowed_hours(values, {"partition": name}, changed, ANN, now=0)
        assert allowed["hours"] == hours


@pytest.mark.parametrize(
    ("raw", "field", "says"),
    [
        ({"partition": "none"}, "partition", "there are gpu, cpu, old"),
        ({"partition": "secret"}, "partition", "there is no partition secret"),
        ({"partition": "old", "gpus": 0}, "partition", "takes no jobs now"),
        ({"nodes": 3}, "nodes", "gpu has 2 nodes with enough GPUs, cores and memory"),
        ({"nodes": 2, "gpus": 4}, "nodes", "gpu has 1 node with enough GPUs, cores and memory"),
        ({"nodes": 0}, "nodes", "greater than or equal to 1"),
        ({"nodes": True}, "nodes", "not a number"),
        ({"gpus": 5}, "gpus", "at most 4 GPUs"),
        ({"gpus": 3, "gpu_type": "t4"}, "gpus", "at most 2 GPUs of type t4"),
        ({"gpu_type": "h100"}, "gpu_type", "gpu has a100, t4"),
        ({"partition": "cpu", "gpus": 1}, "gpus", "cpu has no GPUs"),
        ({"partition": "cpu", "gpu_type": "t4"}, "gpu_type", "no GPUs"),
        ({"cpus": 33}, "cpus", "at most 32 cores"),
        ({"cpus": 16, "gpus": 4}, "cpus", "at most 8 cores"),
        ({"memory_gb": 65}, "memory_gb", "at most 64 GiB"),
        ({"image": "other"}, "image", "offered: base:1.0"),
        ({"gpus": -1}, "gpus", "greater than or equal to 0"),
        ({"cpus": 0}, "cpus", "greater than or equal to 1"),
        ({"hours": math.nan}, "hours", "finite"),
        ({"hours": math.inf}, "hours", "finite"),
        ({"cpus": "two"}, "cpus", "integer"),
        ({"cpus": 10**30}, "cpus", "4096"),
        ({"prologue": "id"}, "", "unknown option 'prologue'; known are partition"),
        ({"cmd": ["id"]}, "", "unknown option 'cmd'"),
        ({"partition": ["gpu"]}, "partition", "string"),
        ({"image": None}, "image", "string"),
        ({"application": "editor"}, "application", "base:1.0 offers lab"),
        ({"own_image": "x.sif"}, "own_image", "characters that are not allowed"),
        ({"project": "theirs"}, "project", "you have no project folder theirs; yours: none"),
        ({"project": "../root"}, "project", "characters that are not allowed"),
    ],
)
def test_a_problem_names_its_field(raw, field, says, snapshot, catalogue):
    problems = problems_of(raw, snapshot, catalogue)
    assert list(problems) == [field]
    assert says in problems[field]


HOSTILE = [
    "gpu\n#SBATCH --uid=0", "gpu;id", "$(id)", "`id`", "gpu'", 'gpu"', "gpu id", "../gpu",
    "gpu\x00",     "-p", "--wrap=id", "gpu\r\n", "ｇｐｕ", "gpu\u202e", "", " ", "a" * 100,
    "gpu%j", "gpu,cpu", "*",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize(
    "field", ["partition", "gpu_type", "image", "account", "qos", "reservation"]
)
def test_hostile_names_are_refused(field, text, snapshot, catalogue):
    if text == "" and field not in ("partition", "image"):
        pytest.skip("empty means any, or the default")
    assert field in problems_of({field: text}, snapshot, catalogue)


def test_the_form_shows_problems_at_their_field_and_escapes(snapshot, catalogue):
    html = form.render(
        Config(),
        snapshot,
        catalogue,
        {**GOOD, "cpus": '"><script>evil'},
        {"cpus": "<too many>"},
        user=ANN,
        now=0,
    )
    assert "<script>evil" not in html
    assert 'id="cpus-problem">&lt;too many&gt;' in html
    assert "Base &lt;b&gt;" in html
    assert "&#34;whole_node&#34;: true" in html


def test_the_form_says_when_slurm_is_away(catalogue):
    html = form.render(Config(), None, catalogue, GOOD, {}, user=ANN, now=0)
    assert "Slurm cannot be reached" in html


def test_form_data_become_raw_options():
    sent = {"_xsrf": ["x"], "gpus": ["1"], "cpus": [""], "partition": [" gpu "], "evil": ["1"]}
    assert form.parse(sent) == {"gpus": "1", "partition": "gpu", "evil": "1"}


def test_unknown_options_are_all_named():
    _, problems = options.SessionOptions.parse({**GOOD, "cmd": 1, "prologue": 2, "cpus": "x"})
    assert "'cmd', 'prologue'" in problems[""]
    assert list(problems) == ["cpus", ""]


def test_the_site_and_the_partition_limit_the_nodes(snapshot):
    choice, _ = options.SessionOptions.parse({**GOOD, "nodes": 2})
    assert placement.cluster_problems(choice, snapshot, max_nodes=2) == {}
    problems = placement.cluster_problems(choice, snapshot, max_nodes=1)
    assert problems == {"nodes": "this site allows at most 1 node"}
    gpu, *others = snapshot.partitions
    narrow = snapshot.model_copy(
        update={"partitions": (gpu.model_copy(update={"max_nodes": 1}), *others)}
    )
    problems = placement.cluster_problems(choice, narrow, max_nodes=5)
    assert problems == {"nodes": "gpu allows at most 1 node"}


def test_the_field_for_nodes_is_there_where_there_is_a_choice(snapshot, catalogue):
    for most, there in ((1, False), (4, True)):
        config = Config(session=SessionSettings(max_nodes=most))
        html = form.render(config, snapshot, catalogue, GOOD, {}, user=ANN, now=0)
        assert ('id="nodes"' in html) == there
