"""The form shows the fields that a user has a choice in, and problems where they belong."""

import re

from carme.config import Config
from carme.requests.slurm_user import SlurmUser
from carme_spawner import form
from carme_spawner.options import SessionOptions
from support.small_cluster import ANN, NOW, RIGHTS, reservation


def rendered(snapshot, catalogue, user):
    values = dict.fromkeys(SessionOptions.model_fields, "")
    return form.render(Config(), snapshot, catalogue, values, {}, user=user, now=NOW)


def with_partition(snapshot, **values):
    partitions = tuple(
        p.model_copy(update=values) if p.name == "gpu" else p for p in snapshot.partitions
    )
    return snapshot.model_copy(update={"partitions": partitions})


def test_partitions_that_one_cannot_use_are_not_offered(snapshot, catalogue):
    for rule in ({"allow_accounts": ("other",)}, {"allow_groups": ("staff",)}):
        html = rendered(with_partition(snapshot, **rule), catalogue, ANN)
        assert 'value="gpu"' not in html
        assert 'value="cpu"' in html


def test_fields_are_there_only_for_a_choice(snapshot, catalogue):
    one = RIGHTS.model_copy(update={"associations": (RIGHTS.associations[1],)})
    html = rendered(snapshot, catalogue, SlurmUser("ann", frozenset(), one))
    for name in ("account", "qos", "reservation"):
        assert f'name="{name}"' not in html
    assert 'name="account"' not in rendered(snapshot, catalogue, SlurmUser("ann"))
    seen = snapshot.model_copy(update={"reservations": (reservation(users=("ann",)),)})
    html = rendered(seen, catalogue, ANN)
    for name in ("account", "qos", "reservation"):
        assert f'name="{name}"' in html
    assert '<option value="lab" selected>lab (your default)</option>' in html
    assert "class (1 node, 1 h 51 min left)" in html


def test_a_problem_of_a_hidden_field_is_shown_above_the_form(snapshot, catalogue):
    values = dict.fromkeys(SessionOptions.model_fields, "")
    problems = {"account": "you have no account <x>", "cpus": "too many"}
    html = form.render(
        Config(), snapshot, catalogue, values, problems, user=SlurmUser("ann"), now=NOW
    )
    assert "Account: you have no account &lt;x&gt;</div>" in html
    assert 'id="cpus-problem"' in html


def test_features_are_offered_where_nodes_have_some(snapshot, catalogue):
    assert 'name="constraint"' not in rendered(snapshot, catalogue, ANN)
    nodes = (node.model_copy(update={"features": ("nvlink",)}) for node in snapshot.nodes)
    html = rendered(snapshot.model_copy(update={"nodes": tuple(nodes)}), catalogue, ANN)
    assert "More options" in html
    assert '<option value="nvlink"></option>' in html


def test_inputs_have_the_bounds_of_the_model(snapshot, catalogue):
    html = rendered(snapshot, catalogue, ANN)
    for attributes in (
        'id="nodes" name="nodes" step="1" min="1" max="16"',  # the site's limit
        'id="gpus" name="gpus" step="1" min="0" max="64"',
        'id="cpus" name="cpus" step="1" min="1" max="4096"',
        'id="workload" name="workload" maxlength="64"',
        'id="batch" name="batch" step="1" min="1" max="10000000"',
        'id="epochs" name="epochs" step="any" min="0.01" max="1000000"',
    ):
        assert attributes in html
    assert 'id="partition" name="partition">' in html


def test_scripts_and_styles_are_files_of_their_own(snapshot, catalogue):
    html = rendered(snapshot, catalogue, ANN)
    assert re.findall(r'src="/hub/static-[a-z-]+/([a-z]+\.js)\?v=', html) == [
        "elements.js", "form.js", "advice.js",
    ]  # fmt: skip
    assert "<script>" not in html
    assert "<style>" not in html
