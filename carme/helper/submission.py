"""Submitting a session's batch script as the user, with plain messages for Slurm's refusals."""

from pathlib import Path

from carme.errors import CarmeError, DeniedError, InputError, MissingError, UnavailableError
from carme.helper.models import LOG_FILE, SubmitRequest
from carme.helper.session_folder import SessionFolder
from carme.slurm.slurm_commands import SlurmCommands, failure, first_line

# What sbatch prints, in lower case, and the message for the user.
_PLAIN: tuple[tuple[str, type[CarmeError], str, str], ...] = (
    (
        "invalid account or account/partition",
        DeniedError,
        "your user name has no account in Slurm for this partition",
        "ask the administrators to add you (sacctmgr add user … account=…)",
    ),
    ("invalid qos", DeniedError, "you may not use this quality of service (QoS)", ""),
    (
        "job violates accounting/qos policy",
        DeniedError,
        "this is more than your account or QoS allows: {detail}",
        "ask for less, or wait until other jobs of yours have ended",
    ),
    (
        "requested time limit is invalid",
        InputError,
        "the time is longer than this partition allows",
        "ask for less time",
    ),
    (
        "requested node configuration is not available",
        InputError,
        "no node of this partition has what you ask for",
        "ask for fewer GPUs, CPUs or less memory",
    ),
    ("node count specification invalid", InputError, "there are not that many nodes", ""),
    ("more processors requested", InputError, "this partition gives not that many CPUs", ""),
    ("memory specification can not", InputError, "no node here has that much memory", ""),
    ("memory required by task is not", InputError, "no node here has that much memory", ""),
    ("invalid partition name", InputError, "there is no such partition", ""),
    ("invalid generic resource", InputError, "there are no such GPUs", ""),
    ("invalid feature", InputError, "no node has that feature", ""),
    ("group not permitted", DeniedError, "you may not use this partition", ""),
    ("access/permission denied", DeniedError, "Slurm does not take jobs from you there", ""),
    ("required partition not available", UnavailableError, "this partition is closed now", ""),
    ("reservation", DeniedError, "the reservation cannot be used: {detail}", ""),
)


def submit(request: SubmitRequest, home: Path, run: SlurmCommands) -> tuple[int, str]:
    """The job's id and its folder; writes the files before the job can start."""
    if not home.is_dir():
        raise MissingError(f"your home folder {home} does not exist", "ask the administrators")
    with SessionFolder.open(home, request.name, create=True) as folder:
        for name, text in request.files.items():
            folder.write(name, text)
        path = folder.path
    # Options here win over those in the script. NIL: no variable of ours reaches the job.
    log = str(path / LOG_FILE).replace("%", "%%")
    argv = ["sbatch", "--parsable", "--export=NIL", f"--chdir={path}"]
    argv += [f"--output={log}", f"--error={log}", "--open-mode=append"]
    done = run(argv, request.script)
    if done.returncode:
        raise explain_refusal(done.stderr)
    job_id = done.stdout.strip().split(";")[0]
    if not job_id.isdecimal():
        raise UnavailableError(f"sbatch answered {first_line(done.stdout)!r}, not a job's number")
    return int(job_id), str(path)


def explain_refusal(printed: str) -> CarmeError:
    """The typed error for what sbatch printed."""
    error = failure(printed, "sbatch")
    if error.reason == "unavailable":
        return error
    text = printed.lower()
    for sign, kind, message, hint in _PLAIN:
        if sign in text:
            return kind(message.format(detail=_detail(printed)), hint)
    return InputError(f"Slurm did not take the job: {first_line(printed)}")


def _detail(printed: str) -> str:
    """The line that names the limit (`QOSMaxGRESPerUser`), if sbatch gave one."""
    lines = [line.removeprefix("sbatch: error: ").strip() for line in printed.splitlines()]
    return next((line for line in lines if line), "")[:300]
