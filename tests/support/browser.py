"""Actions of a user in a browser."""

from playwright.sync_api import Page, expect

from support.cluster import Cluster
from support.hub import session_url


def login(page: Page, cluster: Cluster, user: str) -> None:
    """Log in; returns on the page after the login."""
    page.goto(f"{cluster.config.hub.url}/hub/login")
    page.get_by_label("Username").fill(user)
    page.get_by_label("Password").fill(cluster.password(user))
    page.get_by_role("button", name="Sign in").click()


_SMALL = {
    "partition": "gpu",
    "nodes": "1",
    "gpus": "1",
    "gpu_type": "",
    "cpus": "1",
    "memory_gb": "1",
    "hours": "0.5",
    "account": "research",
    "qos": "normal",
    "reservation": "",
    "image": "base:1.0",
    "project": "",
    "constraint": "",
    "own_image": "",
    "workload": "",
}


def fill_form(page: Page, **values: str) -> None:
    """Fill in all fields, because the form remembers the user's last request."""
    expect(page.locator("#partition")).to_be_visible()
    for name, value in {**_SMALL, **values}.items():
        # A hidden field is empty or has no choice.
        if name in values or page.locator(f"#{name}").is_visible():
            choose(page, **{name: value})


def choose(page: Page, **values: str) -> None:
    """Fill in fields of the form by name."""
    for name, value in values.items():
        field = page.locator(f"#{name}")
        if field.evaluate("element => element.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)


def open_lab(page: Page, cluster: Cluster, user: str) -> None:
    """Wait for the session's JupyterLab, and show its launcher.

    JupyterLab otherwise restores the tabs of the user's last session.
    """
    expect(page.locator(".jp-LabShell")).to_be_visible(timeout=60_000)
    page.goto(f"{session_url(cluster.config, user)}/lab?reset")
    expect(page.locator(".jp-LauncherCard").first).to_be_visible(timeout=60_000)


def run_cell(page: Page, code: str, seconds: float = 30) -> str:
    """Open a notebook in JupyterLab, run `code` in its first cell; returns its output.

    The code must print "done here" at the end.
    """
    page.locator(".jp-LauncherCard[data-category=Notebook]").first.click()
    cell = page.locator(".jp-Notebook .jp-CodeCell .cm-content").first
    cell.click()
    # The toolbar shows the kernel's name when it is ready; earlier keys would be lost.
    expect(page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]")).to_be_visible(
        timeout=30_000
    )
    cell.evaluate(
        "(element, text) => element.cmView.view.dispatch({changes: {from: 0, insert: text}})", code
    )
    output = page.locator(".jp-OutputArea-output").first
    prompt = page.locator(".jp-Notebook .jp-CodeCell .jp-InputPrompt").first
    for _ in range(3):
        # JupyterLab may take the focus away while it still opens; then the keys are lost.
        cell.click()
        page.keyboard.press("Shift+Enter")
        try:
            expect(prompt).not_to_have_text("[ ]:", timeout=5_000)
        except AssertionError:
            continue
        break
    expect(output).to_contain_text("done here", timeout=seconds * 1000)
    return output.inner_text()
