"""The cell of the documentation, unchanged, on two real nodes."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from carme.system.files import cache_dir
from carme_containers import ensure_image
from support.browser import login, open_lab, run_cell
from support.hub import User

# The first build of the image takes minutes; the cache keeps it.
pytestmark = pytest.mark.timeout(3600)
PAGE = Path(__file__).parents[2] / "docs/how-to/multi-node.md"
TWO = {"partition": "gpu", "nodes": 2, "gpus": 1, "cpus": 2, "memory_gb": 3, "hours": 0.5}
LOOK = """
import os, subprocess
for name in ("CARME_NODES", "CARME_GPUS_PER_NODE", "MASTER_ADDR", "SLURM_JOB_NODELIST"):
    print(name, os.environ[name])
print(open(os.environ["CARME_HOSTFILE"]).read())
os.environ["MINE"] = "carried along"
inside = '''
from os import environ
token = "token" if "JUPYTERHUB_API_TOKEN" in environ else "no token"
print("node", environ["SLURMD_NODENAME"], "task", environ["SLURM_PROCID"], "image",
      environ["APPTAINER_NAME"], environ["MINE"], token)
'''
run = subprocess.run(["srun", "--label", "python3", "-c", inside], capture_output=True, text=True)
print(run.stdout, run.stderr, "code", run.returncode)
failing = ["srun", "-N1", "-n1", "python3", "-c", "exit(5)"]
print("fails", subprocess.run(failing, capture_output=True).returncode)
print("done " + "here")
"""


def documented_cell() -> str:
    blocks = re.findall(r"^```text\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    [cell] = [block for block in blocks if "torchrun" in block]
    return cell


@pytest.fixture
def lab(cluster, browser):
    """`lab(image)`: JupyterLab on two nodes in a browser; the session ends after."""
    person = User.fresh(cluster, cluster.users[0])
    page = browser.new_context(viewport={"width": 1200, "height": 800}).new_page()

    def start(image):
        person.start(seconds=120, **TWO, image=image)
        login(page, cluster, person.name)
        page.goto(f"{person.session_url}/lab")
        open_lab(page, cluster, person.name)
        return page

    yield start
    page.context.close()
    person.stop()


def test_srun_and_variables(cluster, lab):
    text = run_cell(lab("base"), LOOK, seconds=120)
    assert "CARME_NODES 2" in text
    assert "MASTER_ADDR 127.0.0.1" in text
    assert "gpu01 slots=1" in text
    assert "gpu02 slots=1" in text
    for task, node in (("0", "gpu01"), ("1", "gpu02")):
        line = f"{task}: node {node} task {task} image base-"
        assert line in text, text
    assert text.count("carried along no token") == 2
    assert "code 0" in text
    assert "fails 5" in text


def test_the_documented_cell(cluster, lab, screenshots):
    image = ensure_image("pytorch", cluster.config, cache_dir(), print)
    page = lab(image.id)
    text = run_cell(page, documented_cell() + '\nprint("done " + "here")\n', seconds=240)
    # The rendezvous decides which node gets which rank.
    ranks = sorted(re.findall(r"rank (\d) of 2 on (gpu0\d): 3", text))
    assert [rank for rank, _ in ranks] == ["0", "1"], text
    assert {node for _, node in ranks} == {"gpu01", "gpu02"}, text
    expect(page.locator(".jp-OutputArea-output").first).to_be_visible()
    screenshots(page, "multi-node")
