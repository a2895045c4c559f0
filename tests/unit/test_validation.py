import pytest
from pydantic import BaseModel, ValidationError, model_validator

from carme.validation import explain, explain_by_field, explain_first


class Inner(BaseModel):
    count: int


class Outer(BaseModel, extra="forbid"):
    parts: list[Inner] = []
    name: str = ""

    @model_validator(mode="after")
    def _named(self) -> "Outer":
        if self.name == "x":
            raise ValueError("A name has two letters")
        return self


def problem(data: object) -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate(data)
    return caught.value


def test_lines() -> None:
    lines = explain(problem({"parts": [{"count": "two"}, {}], "name": 5}))
    assert lines == [
        "parts.0.count: input should be a valid integer, unable to parse string as an integer, "
        "not 'two'",
        "parts.1.count: field required",
        "name: input should be a valid string, not 5",
    ]
    assert explain(problem({"name": "x"})) == ["file: a name has two letters"]


def test_the_first_without_its_value() -> None:
    assert explain_first(problem({"name": 5})) == "name: input should be a valid string"
    assert explain_first(problem({"name": "x"})) == "request: a name has two letters"


def test_unknown_keys_come_with_those_that_the_model_has() -> None:
    error = problem({"parts": [{"count": 1}], "nmae": "y"})
    assert explain(error, model=Outer) == ["nmae: no such key; allowed here: name, parts"]
    assert explain(problem({"name": "x"}), root="") == ["a name has two letters"]


def test_messages_by_field() -> None:
    error = problem({"parts": [{"count": "two"}], "name": 5, "evil": 1, "worse": 2})
    assert explain_by_field(error, Outer) == {
        "parts": "input should be a valid integer, unable to parse string as an integer",
        "name": "input should be a valid string",
        "": "unknown option 'evil', 'worse'; known are parts, name",
    }
    assert explain_by_field(problem({"name": "x"}), Outer) == {"": "a name has two letters"}
