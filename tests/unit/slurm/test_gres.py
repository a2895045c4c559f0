import pytest
from hypothesis import given
from hypothesis import strategies as st

from carme.slurm.gres import (
    Gres,
    free_gpus,
    gpus_of_gres,
    gpus_of_tres,
    memory_of_tres,
    parse_gres,
    parse_tres,
)

TYPES = st.from_regex(r"[a-z][a-z0-9_.-]{0,10}", fullmatch=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("(null)", ()),
        ("N/A", ()),
        ("gpu:4", (Gres("gpu", "", 4),)),
        ("gpu", (Gres("gpu", "", 1),)),
        ("gpu:a100", (Gres("gpu", "a100", 1),)),
        ("gpu:a100:4(S:0-1)", (Gres("gpu", "a100", 4),)),
        ("gpu:a100:2(IDX:0-1)", (Gres("gpu", "a100", 2, (0, 1)),)),
        ("gpu:a100:0(IDX:N/A)", (Gres("gpu", "a100", 0),)),
        ("gpu:(null):2(IDX:1,3)", (Gres("gpu", "", 2, (1, 3)),)),
        ("gpu:a100_1g.5gb:7", (Gres("gpu", "a100_1g.5gb", 7),)),
        ("gpu:tesla:no_consume:4", (Gres("gpu", "tesla", 4),)),
        ("gres:gpu:virtual-a100:2", (Gres("gpu", "virtual-a100", 2),)),
        ("gres/gpu:6", (Gres("gpu", "", 6),)),
        ("gres/gpu:a100=4", (Gres("gpu", "a100", 4),)),
        ("gres/gpu=2", (Gres("gpu", "", 2),)),
        ("shard:8(0/4,1/4)", (Gres("shard", "", 8),)),
        ("craynetwork:4K", (Gres("craynetwork", "", 4096),)),
        (
            "gpu:h100:2(IDX:0-1),gpu:h200:4(IDX:2-5),shard:1",
            (
                Gres("gpu", "h100", 2, (0, 1)),
                Gres("gpu", "h200", 4, (2, 3, 4, 5)),
                Gres("shard", "", 1),
            ),
        ),
    ],
)
def test_parse_gres(text: str, expected: tuple[Gres, ...]) -> None:
    assert parse_gres(text) == expected


def test_only_gpus_count() -> None:
    assert gpus_of_gres(parse_gres("gpu:a100:2,shard:8,gpu:a100:1,gpu:3")) == {"a100": 3, "": 3}


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("cpu=4,mem=16G,gres/gpu=2", {"": 2}),
        ("gres/gpu=3,gres/gpu:a100=2,gres/gpu:t4=1", {"a100": 2, "t4": 1}),
        ("gres/gpu=3,gres/gpu:a100=2", {"a100": 2, "": 1}),
        ("gres/gpu:a100=2", {"a100": 2}),
        ("gres/gpumem=80G,gres/gpuutil=90", {}),
        ("cpu=4", {}),
    ],
)
def test_gpus_of_tres(text: str, gpus: dict[str, int]) -> None:
    assert gpus_of_tres(parse_tres(text)) == gpus


@pytest.mark.parametrize(
    ("text", "size"), [("mem=512M", 512 << 20), ("mem=1.50G", 3 << 29), ("mem=7", 7 << 20), ("", 0)]
)
def test_memory_of_tres(text: str, size: int) -> None:
    assert memory_of_tres(parse_tres(text)) == size


@pytest.mark.parametrize(
    ("total", "used", "free"),
    [
        ({"a100": 4}, {"a100": 1}, {"a100": 3}),
        ({"a100": 4}, {}, {"a100": 4}),
        ({"": 4}, {"": 4}, {"": 0}),
        ({"a100": 4}, {"": 3}, {"a100": 1}),  # use without a type
        ({"": 4}, {"a100": 3}, {"": 1}),
        ({"a100": 2}, {"a100": 3}, {"a100": 0}),
    ],
)
def test_free_gpus(total: dict[str, int], used: dict[str, int], free: dict[str, int]) -> None:
    assert free_gpus(total, used) == free


@given(st.dictionaries(TYPES, st.integers(1, 99), max_size=4))
def test_gres_and_tres_say_the_same(gpus: dict[str, int]) -> None:
    gres = ",".join(f"gpu:{kind}:{count}(S:0-1)" for kind, count in gpus.items())
    typed = [f"gres/gpu:{kind}={count}" for kind, count in gpus.items()]
    tres = ",".join([f"gres/gpu={sum(gpus.values())}", *typed])
    assert gpus_of_gres(parse_gres(gres)) == gpus == gpus_of_tres(parse_tres(tres))


@given(st.text(alphabet="gpuresa10:=(),/IDXS-KN ", max_size=60) | st.text(max_size=40))
def test_never_crashes(text: str) -> None:
    for gres in parse_gres(text):
        assert gres.count >= 0
    gpus_of_tres(parse_tres(text))
    memory_of_tres(parse_tres(text))
