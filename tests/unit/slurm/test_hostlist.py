import pytest
from hypothesis import given
from hypothesis import strategies as st

from carme.errors import InputError
from carme.slurm.hostlist import compress, expand, parse_indices

NAMES = st.from_regex(r"[a-z]{1,6}(-?[0-9]{1,4}){0,2}[a-z]{0,2}", fullmatch=True)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("gpu1", ("gpu1",)),
        ("gpu[01-03]", ("gpu01", "gpu02", "gpu03")),
        ("gpu[1,3-4],login", ("gpu1", "gpu3", "gpu4", "login")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("n[8-11]", ("n8", "n9", "n10", "n11")),
        ("n[08-11]-ib", ("n08-ib", "n09-ib", "n10-ib", "n11-ib")),
        ("a1, a2", ("a1", "a2")),
    ],
)
def test_expand(text: str, names: tuple[str, ...]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    "text", ["gpu[1-", "gpu]", "gpu[a-b]", "gpu[]", "n[1-99999999999]", "n[1-9]" * 9]
)
def test_expand_refuses(text: str) -> None:
    with pytest.raises(InputError):
        expand(text)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["gpu2", "gpu1"], "gpu[1-2]"),
        (["gpu01", "gpu02", "gpu04"], "gpu[01-02,04]"),
        (["n9", "n10"], "n[10],n9".replace("[10]", "10")),
        (["login"], "login"),
        (["n1-ib", "n2-ib"], "n[1-2]-ib"),
    ],
)
def test_compress(names: list[str], text: str) -> None:
    assert compress(names) == text


@given(st.sets(NAMES, max_size=40))
def test_round_trip(names: set[str]) -> None:
    short = compress(names)
    assert set(expand(short)) == names
    assert compress(expand(short)) == short


@given(st.text(max_size=60))
def test_expand_answers_or_refuses(text: str) -> None:
    try:
        names = expand(text)
    except InputError:
        return
    assert all(names)


@given(st.text(max_size=40))
def test_indices_never_crash(text: str) -> None:
    assert all(number >= 0 for number in parse_indices(text))


def test_indices() -> None:
    assert parse_indices("0-2,5") == (0, 1, 2, 5)
    assert parse_indices("N/A") == ()
