"""`carme job` and `carme jobs` over the service's API."""

import json
import threading

import pytest
from click.testing import CliRunner
from werkzeug.serving import make_server

from carme.errors import DeniedError, InputError, MissingError, UnavailableError
from carme.jobs.commands import job, jobs
from carme.jobs.models import JobLine, JobList, JobReport
from carme.slurm.states import JobState

GIB = 2**30


@pytest.fixture
def url(service):
    """Where the application answers over HTTP."""
    server = make_server("127.0.0.1", 0, service.app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def run(command, *arguments, url, token="token-ann", **environment):
    environment |= {"CARME_HUB_URL": url, "CARME_TOKEN": token}
    result = CliRunner().invoke(command, [*arguments, "--json"], env=environment)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return json.loads(result.stdout)


def test_a_report_anywhere(service, url):
    service.view.reports["5"] = JobReport(id=5, user="ann", state=JobState.COMPLETED, ended_at=9)
    assert run(job, "5", url=url)["user"] == "ann"
    # In a session the hub's token is in the environment already.
    assert run(job, "5", url=url, token=None, JUPYTERHUB_API_TOKEN="token-ann")["id"] == 5
    with pytest.raises(MissingError, match="no job 5"):
        run(job, "5", url=url, token="token-ben")


def test_a_list_anywhere(service, url):
    listed = tuple(JobLine(id=n, label=f"7_{n}", user="ann") for n in range(1, 151))
    service.view.listed = JobList(jobs=listed, left_out=50)
    answer = run(jobs, "-p", "gpu", "-s", "failed", "--since", "2026-03-01", url=url)
    assert len(answer["jobs"]) == 100
    assert answer["left_out"] == 100
    asked = [path for path in service.view.asked if path.startswith("/reports?")][-1]
    assert "partition=gpu" in asked
    assert "state=failed" in asked
    assert "user=ann" in asked
    assert len(run(jobs, "-n", "500", url=url)["jobs"]) == 150
    assert run(jobs, "-u", "ben", url=url)["jobs"] == []
    service.view.reports["9"] = JobReport(id=9, user="ann", state=JobState.RUNNING)
    assert run(job, "7_9", url=url)["id"] == 9


def test_clear_errors(service, url):
    with pytest.raises(InputError, match="wants a token") as error:
        run(job, "5", url=url, token="")
    assert "/hub/token" in error.value.hint
    with pytest.raises(DeniedError, match="does not accept this token"):
        run(job, "5", url=url, token="nonsense")
    with pytest.raises(DeniedError):
        run(job, "5", url=url, token="token-narrow")
    with pytest.raises(InputError, match="not the address"):
        run(job, "5", url="hub.example")
    with pytest.raises(UnavailableError, match="does not answer"):
        run(job, "5", url="http://127.0.0.1:9")
    with pytest.raises(MissingError, match="not found"):
        run(job, "5", url=f"{url}/elsewhere")
    service.view.close()
    service.config.view.socket.unlink()
    with pytest.raises(UnavailableError):
        run(jobs, url=url)
