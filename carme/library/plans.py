"""Plans from fields as people write them."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from carme.errors import InputError
from carme.simulator.plans.plan import (
    Asynchronous,
    Averaging,
    BasePlan,
    ParameterServer,
    Synchronous,
)
from carme.validation import explain

PLANS: dict[str, type[BasePlan]] = {
    "synchronous": Synchronous,
    "asynchronous": Asynchronous,
    "parameter-server": ParameterServer,
    "averaging": Averaging,
}


def make_plan(kind: str, fields: dict[str, Any]) -> BasePlan:
    """A plan from its fields; what is wrong with them is one line each."""
    model = PLANS[kind]
    strange = sorted(set(fields) - set(model.model_fields))
    if strange:
        allowed = ", ".join(name for name in model.model_fields if name != "kind")
        raise InputError(f"a {kind} plan has no {', '.join(strange)}", f"it has {allowed}")
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise InputError("; ".join(explain(error))) from None
