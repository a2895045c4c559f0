"""`carme-helper`: the six verbs that the hub may run as a user.

The hub runs `sudo -n -u USER carme-helper --config PATH VERB` with a JSON request on standard
input, and gets a JSON answer or `{"error": …}` with exit code 1. The sudo rule spells every
argument out, so neither the configuration nor the verb can be anything else.
"""

import grp
import json
import os
import pwd
import signal
import sys
import time
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from carme.config import Config, load
from carme.errors import (
    CarmeError,
    ConfigError,
    DeniedError,
    InputError,
    MissingError,
    UnavailableError,
    error_to_json,
)
from carme.helper.limited_call import call_limited
from carme.helper.models import (
    LOG_FILE,
    VERBS,
    CancelRequest,
    ExtendRequest,
    ImageRequest,
    SignalRequest,
    SubmitRequest,
    TailRequest,
)
from carme.helper.session_folder import SessionFolder, remove_old
from carme.images.own_image import CHECK_SECONDS, check_own_image, find_apptainer
from carme.slurm.command_runner import (
    SAFE_PATH,
    SlurmCommandRunner,
    explain_refusal,
    failure,
    first_line,
    output,
)
from carme.validation import explain_first

MIN_UID = 1000
_MAX_REQUEST_BYTES = 4 * 2**20
_SBATCH_SECONDS = 60.0
_MAX_SECONDS = 70
"""The hub waits for 75 s, and cannot kill a process of another user."""


class Helper:
    """The verbs, for one user with one home."""

    def __init__(self, config: Config, home: Path, run: SlurmCommandRunner) -> None:
        self._config = config
        self._home = home
        self._run = run

    def submit(self, request: SubmitRequest) -> dict[str, Any]:
        """Write the session's files, then submit its script; returns the job's id."""
        home = self._home
        if not home.is_dir():
            raise MissingError(f"your home folder {home} does not exist", "ask the administrators")
        with SessionFolder.open(home, request.name, create=True) as folder:
            for name, text in request.files.items():
                folder.write(name, text)
        # Options here win over those in the script. NIL: no variable of ours reaches the job.
        log = str(folder.path / LOG_FILE).replace("%", "%%")
        argv = ["sbatch", "--parsable", "--export=NIL", f"--chdir={folder.path}"]
        argv += [f"--output={log}", f"--error={log}", "--open-mode=append"]
        done = self._run(argv, request.script)
        if done.returncode:
            raise explain_refusal(done.stderr)
        job_id = done.stdout.strip().split(";")[0]
        if not job_id.isdecimal():
            raise UnavailableError(
                f"sbatch answered {first_line(done.stdout)!r}, not a job's number"
            )
        keep = {request.name, *request.in_use}
        remove_old(home, keep, time.time() - 86400 * self._config.session.keep_days)
        return {"job_id": int(job_id), "folder": str(folder.path)}

    def cancel(self, request: CancelRequest) -> dict[str, Any]:
        """End a job; no error if it has ended already."""
        done = self._run(["scancel", str(request.job_id)])
        if done.returncode:
            error = failure(done.stderr, "scancel")
            if not isinstance(error, MissingError):
                raise error
        return {}

    def signal(self, request: SignalRequest) -> dict[str, Any]:
        """Send a signal to a job's script, which passes it on to its Jupyter server.

        It does not go to all processes: the Jupyter server ends its kernels itself.
        """
        options = [f"--signal={request.signal}", "--batch"]
        output(self._run(["scancel", *options, str(request.job_id)]), "scancel")
        return {}

    def extend(self, request: ExtendRequest) -> dict[str, Any]:
        """Extend a job's time limit; the view checks the owner and the limits."""
        # Imported here: the other verbs start in half the time without it.
        from carme.view.client import ViewClient

        job = ViewClient.of(self._config.view).extend(request.job_id, request.seconds)
        return {"limit_seconds": job.limit_seconds, "ends_at": job.ends_at}

    def tail_log(self, request: TailRequest) -> dict[str, Any]:
        """The last lines of a log in the session's folder."""
        with SessionFolder.open(self._home, request.name) as folder:
            text = folder.tail(request.file, request.lines)
        return {"text": text}

    def check_image(self, request: ImageRequest) -> dict[str, Any]:
        """Whether this user can start a session from that container image; starts nothing in it."""
        images = self._config.images

        def check() -> dict[str, Any]:
            image = check_own_image(
                request.path,
                find_apptainer(images.apptainer),
                allowed=images.own_images,
                verify_key=images.verify_key,
            )
            return {"path": str(image.path), "size_bytes": image.size_bytes}

        return call_limited(check, CHECK_SECONDS)


def run_verb(helper: Helper, verb: str, text: str) -> dict[str, Any]:
    """The answer to one request."""
    if verb not in VERBS:
        raise InputError(f"no verb {verb!r}", f"one of {', '.join(VERBS)}")
    try:
        request = VERBS[verb].model_validate_json(text)
    except ValidationError as error:
        raise InputError(explain_first(error)) from None
    answer: dict[str, Any] = getattr(helper, verb.replace("-", "_"))(request)
    return answer


def check_user(uid: int, users_group: str) -> pwd.struct_passwd:
    """The account of `uid`; DeniedError unless it is a person's and in the group."""
    if uid < MIN_UID or uid == 65534:
        raise DeniedError(f"uid {uid} is not a person's", "sessions run as users, never as root")
    try:
        user = pwd.getpwuid(uid)
        group = grp.getgrnam(users_group)
    except KeyError as error:
        raise DeniedError(f"no such account or group: {error.args[0]}") from None
    if group.gr_gid not in os.getgrouplist(user.pw_name, user.pw_gid):
        raise DeniedError(f"{user.pw_name} is not in group {users_group}")
    return user


def make_helper(config: Config) -> Helper:
    """The helper for the user of this process; the user's environment is replaced."""
    if os.getuid() != os.geteuid():
        raise DeniedError("carme-helper must not be set-uid")
    user = check_user(os.getuid(), config.hub.users_group)
    os.environ.clear()
    os.environ.update({"PATH": SAFE_PATH, "HOME": user.pw_dir, "LC_ALL": "C.UTF-8"})
    os.umask(0o077)
    slurm = config.slurm.model_copy(update={"timeout_seconds": _SBATCH_SECONDS})
    return Helper(config, Path(user.pw_dir), SlurmCommandRunner.of(slurm))


def _too_long(*_: object) -> None:
    raise UnavailableError(f"this was not done within {_MAX_SECONDS} s", "try again later")


def main() -> None:
    """The program `carme-helper`."""
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(_MAX_SECONDS)
    try:
        # `--config PATH VERB` and nothing else: the sudo rule names exactly this.
        if len(sys.argv) != 4 or sys.argv[1] != "--config":
            raise InputError("usage: carme-helper --config PATH VERB", f"one of {', '.join(VERBS)}")
        path, verb = Path(sys.argv[2]), sys.argv[3]
        if not path.is_absolute():
            raise ConfigError("the path of carme.toml must be absolute")
        text = sys.stdin.buffer.read(_MAX_REQUEST_BYTES + 1)
        if len(text) > _MAX_REQUEST_BYTES:
            raise InputError("the request is too long")
        answer = run_verb(make_helper(load(path)), verb, text.decode("utf-8", "replace"))
    except CarmeError as error:
        answer = error_to_json(error)
    print(json.dumps(answer))
    sys.exit(1 if "error" in answer else 0)


if __name__ == "__main__":
    main()
