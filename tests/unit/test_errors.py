from carme.errors import DeniedError, UnavailableError, error_from_json, error_to_json


def test_errors_travel() -> None:
    error = error_from_json(error_to_json(DeniedError("no", "ask")))
    assert isinstance(error, DeniedError)
    assert (error.message, error.hint) == ("no", "ask")
    newer = error_from_json({"error": {"reason": "of a newer Carme"}})
    assert isinstance(newer, UnavailableError)
    assert error_from_json({"jobs": []}) is None
    assert error_from_json([]) is None
