"""The helper's requests and replies, shared by hub and helper."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from carme.images.own_image import IMAGE_PATH_PATTERN

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$"
"""Of a session's folder and of the files in it."""
SessionName = Annotated[str, Field(pattern=NAME_PATTERN)]
FileName = Annotated[str, Field(pattern=NAME_PATTERN)]
JobId = Annotated[int, Field(ge=1, le=2**32 - 1, strict=True)]
LOG_FILE = "session.log"


class HelperRequest(BaseModel):
    """A request; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SubmitRequest(HelperRequest):
    """A batch script, and the files it will find in `~/.carme/sessions/<name>`."""

    name: SessionName
    script: Annotated[str, Field(min_length=3, max_length=2**20, pattern=r"^#!")]
    files: dict[FileName, Annotated[str, Field(max_length=2**20)]] = {}
    in_use: tuple[SessionName, ...] = ()
    """Sessions whose folders stay, however old."""


class CancelRequest(HelperRequest):
    """Which job to end."""

    job_id: JobId


class SignalRequest(HelperRequest):
    """Which signal for which job."""

    job_id: JobId
    signal: Literal["TERM", "INT", "HUP", "USR1", "USR2", "CONT", "STOP"]


class ExtendRequest(HelperRequest):
    """How much longer a job may run."""

    job_id: JobId
    seconds: Annotated[int, Field(ge=60, le=366 * 86400)]


class TailRequest(HelperRequest):
    """Which log of which session, and how much of it."""

    name: SessionName
    file: FileName = LOG_FILE
    lines: Annotated[int, Field(ge=1, le=1000)] = 50


class ImageRequest(HelperRequest):
    """Which container image."""

    path: Annotated[str, Field(pattern=r"^/[^\x00]+$", max_length=4096)]


VERBS: Mapping[str, type[HelperRequest]] = {
    "submit": SubmitRequest,
    "cancel": CancelRequest,
    "signal": SignalRequest,
    "extend": ExtendRequest,
    "tail-log": TailRequest,
    "check-image": ImageRequest,
}
"""Verb to its request."""


class HelperReply(BaseModel):
    """A reply. It is validated like any input, since the helper runs as the user."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class SubmitReply(HelperReply):
    """The job, and its folder by absolute path."""

    job_id: JobId
    folder: Annotated[str, Field(max_length=4096)]


class ExtendReply(HelperReply):
    """The job's new time limit and end."""

    limit_seconds: Annotated[int, Field(ge=0, le=2**40)] | None
    ends_at: Annotated[int, Field(ge=0, le=2**40)] | None


class TailReply(HelperReply):
    """The last lines of a log."""

    text: Annotated[str, Field(max_length=2**18)]


class ImageReply(HelperReply):
    """A container image that this user can read."""

    path: Annotated[str, Field(pattern=IMAGE_PATH_PATTERN)]
    size_bytes: Annotated[int, Field(ge=0, lt=2**63)]
