"""What every section of carme.toml is, and the names that several of them take."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Port = Annotated[int, Field(ge=1, le=65535)]
UnixName = Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_-]{0,31}$")]
NodeName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,31}$")]


class Section(BaseModel):
    """A table of carme.toml: unknown keys are errors, values do not change after reading."""

    # Not `use_attribute_docstrings`: it reads this file's source, which takes longer than all the
    # rest, and the helper starts anew for every session. See `carme.config.explanations`.
    model_config = ConfigDict(frozen=True, extra="forbid")
