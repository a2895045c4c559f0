"""Tuples as keys of JSON objects, for dataclasses that the state file keeps."""

import json
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer


def _parsed(key: Any) -> Any:
    return json.loads(key) if isinstance(key, str) else key


_FROM_JSON, _TO_JSON = BeforeValidator(_parsed), PlainSerializer(json.dumps, return_type=str)
PairKey = Annotated[tuple[str, str], _FROM_JSON, _TO_JSON]
TripleKey = Annotated[tuple[str, str, str], _FROM_JSON, _TO_JSON]
TupleKey = Annotated[tuple[str, ...], _FROM_JSON, _TO_JSON]
