"""The resources of a job: the one table of fields, labels, bounds, defaults and sbatch options.

The spawn form, the REST options, the job script, `sbatch --test-only`, presets and the advice of
the prediction service derive from it.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)

from carme.units import format_slurm_time
from carme.validation import explain_by_field

GIB = 2**30
Problems = dict[str, str]
"""Why a request is refused: field to message. The message at the empty name is for no field."""
ADVICE_SECONDS = 0.9
"""The hub waits this long for an advice: the form works without one."""
ADVICE_VIEW_SECONDS = 0.25
"""The service waits this long for each answer of the view, so that the advice is there in time."""


def _not_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("this is not a number")
    return value


def _feature_expression(text: str) -> str:
    if text and not re.fullmatch(r"\w[\w.-]*([&|]\w[\w.-]*)*", text, re.ASCII):
        raise ValueError("write names of features with & or | between them")
    return text


Int = Annotated[int, BeforeValidator(_not_bool)]
Float = Annotated[float, Field(allow_inf_nan=False), BeforeValidator(_not_bool)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
OptionalName = Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9_.-]{0,63})?$")]
Constraint = Annotated[str, Field(max_length=200), AfterValidator(_feature_expression)]


class Sbatch:
    """The sbatch options of a field, formatted with the request; left out for an empty value."""

    def __init__(self, *options: str) -> None:
        self.options = options


class ResourceRequest(BaseModel):
    """Resources of one job. GPUs, cores and memory are those of each node.

    The order of the fields is the order of the sbatch options.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    partition: Annotated[Name, Sbatch("--partition={0.partition}"), Field(title="Partition")]
    nodes: Annotated[
        Int,
        Sbatch("--nodes={0.nodes}", "--ntasks-per-node=1"),
        Field(title="Nodes", ge=1, le=10_000),
    ] = 1
    cpus: Annotated[
        Int, Sbatch("--cpus-per-task={0.cpus}"), Field(title="CPU cores", ge=1, le=4096)
    ] = 1
    memory_gb: Annotated[
        Int, Sbatch("--mem={0.memory_mb}M"), Field(title="Memory (GiB)", ge=1, le=65536)
    ] = 1
    hours: Annotated[
        Float, Sbatch("--time={0.time_limit}"), Field(title="Time (hours)", gt=0, le=24 * 365)
    ] = 1
    gpus: Annotated[Int, Sbatch("--gres={0.gres}"), Field(title="GPUs", ge=0, le=64)] = 0
    gpu_type: Annotated[OptionalName, Field(title="GPU type", description="Empty: any type.")] = ""
    account: Annotated[
        OptionalName,
        Sbatch("--account={0.account}"),
        Field(title="Account", description="Empty: the user's default account."),
    ] = ""
    qos: Annotated[
        OptionalName,
        Sbatch("--qos={0.qos}"),
        Field(title="Quality of service", description="Empty: the account's default."),
    ] = ""
    reservation: Annotated[
        OptionalName,
        Sbatch("--reservation={0.reservation}"),
        Field(title="Reservation", description="Empty: none."),
    ] = ""
    constraint: Annotated[
        Constraint,
        Sbatch("--constraint={0.constraint}"),
        Field(title="Node features", description="Features with & and |, read from the left."),
    ] = ""

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> tuple[Self | None, Problems]:
        """The request in `raw`, or what is wrong with which field."""
        try:
            return cls.model_validate(dict(raw)), {}
        except ValidationError as error:
            return None, explain_by_field(error, cls)

    @classmethod
    def labels(cls) -> dict[str, str]:
        """Field to the label that people see."""
        return {name: field.title or name for name, field in cls.model_fields.items()}

    @classmethod
    def summary(cls, problems: Problems) -> str:
        """All problems in one line, for REST clients and the log."""
        labels = cls.labels()
        return "; ".join(
            f"{labels.get(name, name)}: {text}" if name else text for name, text in problems.items()
        )

    @property
    def seconds(self) -> int:
        """The time limit in seconds; at least a minute, Slurm's smallest."""
        return max(60, round(self.hours * 3600))

    @property
    def time_limit(self) -> str:
        """The time limit as sbatch reads it."""
        return format_slurm_time(self.seconds)

    @property
    def memory_mb(self) -> int:
        """Memory on each node in MiB."""
        return self.memory_gb * 1024

    @property
    def memory_bytes(self) -> int:
        """Memory on each node in bytes."""
        return self.memory_gb * GIB

    @property
    def gres(self) -> str:
        """The GPUs on each node as a GRES: `gpu:a100:2`, `gpu:2`."""
        return ":".join(["gpu", *([self.gpu_type] if self.gpu_type else []), str(self.gpus)])

    def resources(self) -> "ResourceRequest":
        """The resources alone, without the fields of a subclass."""
        return ResourceRequest(**self.model_dump(include=set(ResourceRequest.model_fields)))

    def sbatch_options(self) -> list[str]:
        """The options for sbatch, such as `--nodes=2`."""
        return [
            option.format(self)
            for name, field in ResourceRequest.model_fields.items()
            for sbatch in field.metadata
            if isinstance(sbatch, Sbatch) and getattr(self, name)
            for option in sbatch.options
        ]


class AdviceRequest(ResourceRequest):
    """Resources, and the training that is planned on them: what the service advises on."""

    workload: Annotated[
        str,
        Field(
            title="Workload",
            max_length=64,
            pattern=r"^([A-Za-z0-9][A-Za-z0-9._ -]*)?$",
            description="Empty: nothing is predicted.",
        ),
    ] = ""
    batch: Annotated[
        Annotated[Int, Field(ge=1, le=10**7)] | None,
        Field(title="Batch", description="Unset: the workload's usual batch."),
    ] = None
    epochs: Annotated[
        Annotated[Float, Field(gt=0, le=10**6)] | None,
        Field(title="Epochs", description="Unset: the workload's usual number."),
    ] = None


def check_partial(values: dict[str, Any]) -> None:
    """Raise ValueError if a request could not have these fields and values."""
    ResourceRequest.model_validate({"partition": "any", **values})
