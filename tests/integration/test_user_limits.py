"""One user asks for all that they can, and another one works on as if nothing happened."""

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import requests

from support.cluster import wait_for
from support.hub import User
from support.people import API, Person
from support.programs import first_line, running_program
from support.slurm_live import take_cpu_node, view

pytestmark = pytest.mark.cluster

CPU = {"partition": "cpu", "gpus": 0, "cpus": 1, "memory_gb": 1, "hours": 1}
PREDICTION = {"workload": "resnet-50", "hardware": {"gpus": "8xV100"}}
SLOW_FIT = {
    "workload": "gpt-1.3b",
    "hardware": {"gpus": "64xA100"},
    "steps": [
        {"batch": 64 * (1 + i // 2), "gpus": 64 if i % 2 else 8, "seconds": 2.0 + i / 10}
        for i in range(50)
    ],
}
"""Takes seconds of a core."""
QUESTIONS_ABOUT_HISTORY = """
import os, sys, threading, time
from pathlib import Path
from carme.errors import BusyError, CarmeError
from carme.view.client import ViewClient

client, now, refused = ViewClient(Path(sys.argv[1])), int(time.time()), []

def ask(thread):
    for question in range(10000):
        number = thread + 180 * question
        try:
            client.history(now - 20 * 86400 - 61 * number % 86400, now - 60 * number % 86400)
        except BusyError as error:
            if not refused:  # one write for a line: other threads write, too
                os.write(1, f"refused {error}\\n".encode())
            refused.append(error)
            time.sleep(0.05)
        except CarmeError:
            time.sleep(0.05)

for thread in range(180):
    threading.Thread(target=ask, args=(thread,), daemon=True).start()
sys.stdin.read()
os._exit(0)
"""


class Flood:
    """Requests that many threads repeat until the end; counts answers by status.

    `limit` is in the text of the refusals that the test is about: other limits may refuse, too.
    """

    def __init__(self, limit: str, send: Callable[[], requests.Response]) -> None:
        self.codes: Counter[int] = Counter()
        self.refusals: dict[str, requests.Response] = {}
        """An answer for each text."""
        self.in_progress = 0
        self._limit = limit
        self._send = send
        self._end = threading.Event()
        self._lock = threading.Lock()

    @property
    def refusal(self) -> requests.Response | None:
        """A refusal by the limit."""
        with self._lock:
            return next((r for text, r in self.refusals.items() if self._limit in text), None)

    def _repeat(self) -> None:
        while not self._end.is_set():
            with self._lock:
                self.in_progress += 1
            try:
                response = self._send()
            except requests.RequestException:
                self._end.wait(0.2)
                continue
            finally:
                with self._lock:
                    self.in_progress -= 1
            with self._lock:
                self.codes[response.status_code] += 1
                if response.status_code == 429:
                    self.refusals[response.text] = response
            self._end.wait(0.2 if response.status_code == 429 else 0)

    @contextmanager
    def of(self, threads: int):
        with ThreadPoolExecutor(threads) as pool:
            for _ in range(threads):
                pool.submit(self._repeat)
            try:
                event = f"a refusal with {self._limit!r}"
                wait_for(lambda: self.refusal is not None, 60, event)
                yield
            finally:
                self._end.set()


def sender(user: User, method: str, path: str, **more):
    """`send()` for threads: a request of the user to the hub, with cookies as they are now."""
    headers, cookies = user.hub_headers(), user.web.cookies.get_dict()
    return lambda: requests.request(
        method, f"{user.url}{path}", headers=headers, cookies=cookies, timeout=120, **more
    )


def test_forty_extensions_delay_no_start(cluster):
    ann, ben = (User.fresh(cluster, name) for name in cluster.users[:2])
    ann.start(**CPU)
    try:
        body = {"server": "", "minutes": 1}
        extensions = Flood(
            "extensions in progress", sender(ann, "POST", "/hub/api/carme/extend", json=body)
        )
        with extensions.of(40):
            ben.start(seconds=60, **CPU)
            assert extensions.in_progress, "ann's extensions still wait"
        refusal = extensions.refusal
        assert int(refusal.headers["Retry-After"]) > 0
        assert "then try again" in refusal.json()["message"]
        assert set(extensions.codes) <= {200, 400, 429}, extensions.codes
    finally:
        ben.stop()
        ann.stop()


def test_twenty_fits_delay_no_prediction(cluster):
    ann, ben = (Person(cluster, name) for name in cluster.users[:2])
    address, token = f"{ann.url}{API}/calibrations", {"Authorization": f"token {ann.token}"}
    fits = Flood(
        "long calculations in progress",
        lambda: requests.post(address, json=SLOW_FIT, headers=token, timeout=120),
    )
    with fits.of(20):
        for _ in range(30):
            answer = requests.post(
                f"{ben.url}{API}/predictions",
                json=PREDICTION,
                headers={"Authorization": f"token {ben.token}"},
                timeout=5,
            )
            assert answer.status_code == 200
        assert fits.in_progress, "ann's fits still run"
    refusal = fits.refusal
    assert "long calculations in progress" in refusal.json()["detail"]
    assert int(refusal.headers["Retry-After"]) > 0


@pytest.mark.parametrize("how", ["at the view", "through the service"])
def test_questions_about_history_take_no_page_away(cluster, how):
    ann, ben = (Person(cluster, name) for name in cluster.users[:2])

    def open_pages():
        for day in range(1, 4):
            path = f"/jobs?since={int(time.time()) - 86400 * day}"
            wait_for(lambda p=path: ben.by_token("GET", p).status_code == 200, 20, "ben's page")

    if how == "through the service":
        token = {"Authorization": f"token {ann.token}"}
        numbers = iter(range(10**9))

        def send():
            number = next(numbers)
            since = int(time.time()) - 20 * 86400 - 61 * number % 86400
            return requests.get(f"{ann.url}{API}/jobs?since={since}", headers=token, timeout=120)

        questions = Flood("requests in progress", send)
        with questions.of(30):
            open_pages()
            assert questions.in_progress
        assert "requests in progress" in questions.refusal.json()["detail"]
        return
    argv = ["runuser", "-u", ann.user.name, "--", sys.executable, "-c", QUESTIONS_ABOUT_HISTORY]
    with running_program([*argv, str(cluster.config.view.socket)]) as flood:
        assert first_line(flood).startswith("refused you ")
        open_pages()
        assert flood.poll() is None


def test_expected_starts_are_left_for_others(cluster):
    ann, ben = (User.fresh(cluster, name) for name in cluster.users[:2])
    job = take_cpu_node(cluster)

    def outlook(user, hours):
        query = {"partition": "cpu", "cpus": 2, "memory_gb": 1, "hours": hours}
        send = sender(user, "GET", "/hub/api/carme/outlook", params=query)
        return wait_for(lambda: (a := send().json()) and not a.get("again") and a, 20, "an answer")

    try:
        wait_for(lambda: not outlook(ann, 1)["starts_now"], 20, "the view sees a full node")
        answers = [outlook(ann, 1.1 + number / 10) for number in range(16)]
        # Four at once, and one more every quarter of a minute.
        unanswered = [answer for answer in answers if not answer.get("expected_at")]
        assert unanswered, "ann has used up what there is for her"
        assert outlook(ben, 3.1).get("expected_at"), "and ben has what there is for him"
    finally:
        cluster.run(["scancel", job])


def test_what_one_person_does_is_not_refused(cluster):
    """Forms in three tabs, all sessions started at once over REST, and a script."""
    ben = User.fresh(cluster, cluster.users[1])
    query = {**CPU, "workload": "resnet-50"}
    tab = [
        sender(ben, "GET", "/hub/spawn"),
        *(
            sender(ben, "GET", f"/hub/api/carme/{name}", params={**query, "hours": hours})
            for name in ("outlook", "advice", "cluster", "warnings")
            for hours in (1, 2)
        ),
    ]
    with ThreadPoolExecutor(30) as pool:
        codes = [future.result().status_code for future in [pool.submit(s) for s in 3 * tab]]
    assert 429 not in codes, codes

    names = ["", *(f"s{n}" for n in range(cluster.config.session.named_limit))]
    paths = [
        f"/users/{ben.name}/servers/{name}" if name else f"/users/{ben.name}/server"
        for name in names
    ]
    small = {**CPU, "hours": 0.2}
    try:
        starts = [sender(ben, "POST", f"/hub/api{path}", json=small) for path in paths]
        with ThreadPoolExecutor(len(starts)) as pool:
            codes = [future.result().status_code for future in [pool.submit(s) for s in starts]]
        assert set(codes) <= {201, 202}, codes
        wait_for(
            lambda: all(
                ben.api("GET", f"/users/{ben.name}").json()["servers"].get(name, {}).get("ready")
                for name in names
            ),
            120,
            "all sessions are ready",
        )
    finally:
        for path in paths:
            ben.api("DELETE", path)
        wait_for(
            lambda: (
                not any(
                    server["active"]
                    for server in ben.api("GET", f"/users/{ben.name}").json()["servers"].values()
                )
            ),
            120,
            "the end of the sessions",
        )
    now = int(time.time())
    for page in range(3):
        jobs = view(cluster, ben.name, "history", since=now - 86400 * (page + 1), until=now - page)
        assert isinstance(jobs, list), jobs
