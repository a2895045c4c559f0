"""Two researchers with a real browser: from the login page to a cell that ran in a container."""

import re

from playwright.sync_api import expect

from support.browser import fill_form, login, open_lab, run_cell
from support.cluster import wait_for
from support.hub import User

CELL = """
import os
print("node", os.environ["SLURMD_NODENAME"])
print("gpus", os.environ["CUDA_VISIBLE_DEVICES"])
print("image", os.environ["APPTAINER_NAME"])
print("tmp", os.listdir("/tmp"))
open("/tmp/mine-{user}", "w").close()
print("other home", os.access("/home/{other}", os.R_OK | os.X_OK))
print("done " + "here")
"""


def test_two_users_from_login_to_a_cell(cluster, browser, screenshots):
    pages, printed, held = {}, {}, {}
    for user, other in (cluster.users, cluster.users[::-1]):
        User.fresh(cluster, user)
        page = browser.new_context(viewport={"width": 1200, "height": 800}).new_page()
        login(page, cluster, user)
        fill_form(page, gpu_type="virtual-a100", memory_gb="2")
        screenshots(page, "spawn-form")
        page.get_by_role("button", name="Start").click()
        open_lab(page, cluster, user)
        printed[user] = run_cell(page, CELL.format(user=user, other=other))
        screenshots(page, "jupyterlab")
        pages[user] = page
        [job] = cluster.jobs(user)
        held[user] = cluster.gpu_indices(job["id"])
        assert (job["state"], job["user"]) == ("RUNNING", user)

    for user, other in (cluster.users, cluster.users[::-1]):
        text = printed[user]
        assert "node gpu01" in text
        assert "gpus 0" in text
        assert re.search(r"image base-\S+\.sif", text)
        assert f"mine-{other}" not in text
        assert "other home False" in text
    first, second = (held[user] for user in cluster.users)
    assert first != second
    assert "gpu:virtual-a100:1(IDX:" in first

    for user in cluster.users:
        home = pages[user].context.new_page()  # the notebook's page would ask about unsaved changes
        home.goto(f"{cluster.config.hub.url}/hub/home")
        home.locator("#stop").click()
        wait_for(lambda user=user: not cluster.jobs(user), 30, f"the end of {user}'s job")


def test_a_wrong_value_comes_back_at_its_field_with_the_rest_kept(cluster, browser, screenshots):
    page = browser.new_context(viewport={"width": 1200, "height": 800}).new_page()
    User.fresh(cluster, cluster.admin)
    login(page, cluster, cluster.admin)
    page.goto(f"{cluster.config.hub.url}/hub/spawn")
    fill_form(page, cpus="3", memory_gb="2", hours="99")
    page.get_by_role("button", name="Start").click()
    expect(page.locator("#hours-problem")).to_contain_text("at most 8 h")
    expect(page.locator("#cpus")).to_have_value("3")
    expect(page.locator("#hours")).to_have_value("99")
    expect(page.locator("#outlook")).to_contain_text("allows at most 8 h")
    screenshots(page, "spawn-form-problem")
    assert not cluster.jobs(cluster.admin)
