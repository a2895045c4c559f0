"""Every published image from the form to its own `verify`, and the editor in a real browser."""

import pytest
from playwright.sync_api import expect

from carme.system.files import cache_dir
from carme_containers import ensure_image
from carme_containers.recipe import find_recipes
from support.browser import choose, fill_form, login, open_lab, run_cell
from support.hub import User

# A first build of all images takes many minutes; the cache keeps them by content.
pytestmark = pytest.mark.timeout(3600)
RECIPES = sorted(find_recipes())
VERIFY = """
import os, subprocess
print("image", os.environ["APPTAINER_NAME"], "user", os.getuid() != 0)
run = subprocess.run(["/opt/carme/verify"], capture_output=True, text=True)
print(run.stdout, run.stderr[-2000:], "code", run.returncode)
print("done " + "here")
"""


@pytest.fixture(scope="module")
def published(cluster):
    """All recipes, built and published in the cluster."""
    return {name: ensure_image(name, cluster.config, cache_dir(), print) for name in RECIPES}


@pytest.fixture
def session(cluster, browser, published):
    """`session(image, application)` goes from the login to the page; the session ends after."""
    user = cluster.users[0]
    User.fresh(cluster, user)
    page = browser.new_context(viewport={"width": 1200, "height": 800}).new_page()

    def start(image: str, application: str):
        login(page, cluster, user)
        fill_form(page, image=published[image].id, cpus="2", memory_gb="4")
        if page.locator("#application").is_visible():
            choose(page, application=application)
        page.get_by_role("button", name="Start").click()
        return page

    yield start
    page.context.close()
    User.fresh(cluster, user)


@pytest.mark.parametrize("name", RECIPES)
def test_verify_passes_inside_a_session(cluster, session, published, name):
    page = session(name, "lab")
    open_lab(page, cluster, cluster.users[0])
    printed = run_cell(page, VERIFY, seconds=180)
    assert f"image {published[name].file} user True" in printed
    assert "code 0" in printed, printed


def test_the_editor_opens_in_the_browser(session, screenshots):
    page = session("editor", "editor")
    expect(page.locator(".monaco-workbench")).to_be_visible(timeout=90_000)
    expect(page.locator(".explorer-viewlet, .explorer-folders-view").first).to_be_visible(
        timeout=60_000
    )
    screenshots(page, "editor")
