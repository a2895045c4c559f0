"""Bundled networks have the parameters and products that their papers and libraries print."""

import sys
from pathlib import Path

import pytest

from carme import library

# Millions of parameters and billions of multiply-adds of a forward pass, as torchvision prints;
# the other networks as their papers or reference implementations do. 0: not printed.
PUBLISHED = {
    "resnet-18": (11.69, 1.814),
    "resnet-34": (21.80, 3.664),
    "resnet-50": (25.56, 4.089),
    "resnet-101": (44.55, 7.801),
    "resnet-152": (60.19, 11.514),
    "wide-resnet-50-2": (68.88, 11.398),
    "wide-resnet-101-2": (126.89, 22.753),
    "resnext-50-32x4d": (25.03, 4.230),
    "resnext-101-32x8d": (88.79, 16.414),
    "resnext-101-32x4d": (44.18, 7.99),
    "se-resnext-101-32x4d": (48.96, 8.0),
    "alexnet-owt": (61.10, 0.714),
    "vgg-11": (132.86, 7.609),
    "vgg-13": (133.05, 11.308),
    "vgg-16": (138.36, 15.470),
    "vgg-19": (143.67, 19.632),
    "vgg-19-bn": (143.68, 19.632),
    "densenet-121": (7.98, 2.834),
    "densenet-161": (28.68, 7.728),
    "densenet-169": (14.15, 3.360),
    "densenet-201": (20.01, 4.291),
    "squeezenet-1.0": (1.248, 0.819),
    "squeezenet-1.1": (1.236, 0.349),
    "mobilenet-v2": (3.505, 0.301),
    "mnasnet-0.5": (2.219, 0.104),
    "mnasnet-0.75": (3.170, 0.215),
    "mnasnet-1.0": (4.383, 0.314),
    "mnasnet-1.3": (6.282, 0.526),
    "shufflenet-v2-x0.5": (1.367, 0.040),
    "shufflenet-v2-x1.0": (2.279, 0.145),
    "shufflenet-v2-x1.5": (3.504, 0.296),
    "shufflenet-v2-x2.0": (7.394, 0.583),
    "inception-v3": (23.83, 5.713),  # without the auxiliary head
    "inception-v4": (42.68, 12.27),
    "efficientnet-b0": (5.29, 0.386),
    "efficientnet-b4": (19.34, 4.393),
    "vit-b-16": (86.57, 17.564),
    "vit-l-16": (304.33, 61.555),
    "stable-diffusion": (866, 0),
    "waveglow": (268, 0),
    "tacotron-2": (28.2, 0),
    "quartznet": (18.9, 0),
    "rnn-t": (49, 0),
    "u-net": (31.03, 0),
    "u-net-3d": (31.2, 0),
    "mask-rcnn": (44.4, 0),
    "gnmt": (160.7, 0),
    "retinanet-resnext-50": (37.2, 0),
    "wide-and-deep": (90, 0),
}

# Billions of parameters, as the papers or model cards print them.
TRANSFORMERS = {
    "mpt-125m": 0.125, "mpt-7b": 6.658, "mpt-30b": 29.975, "mpt-70b": 64.862,
    "gpt-neox-20b": 20.55, "gpt-3-175b": 174.6, "llama-2-7b": 6.738, "llama-2-13b": 13.016,
    "llama-2-70b": 68.977, "llama-3-8b": 8.030, "llama-3-70b": 70.554, "llama-3.1-405b": 405.85,
    "llama-3.2-1b": 1.236, "llama-3.2-3b": 3.213, "mistral-7b": 7.242, "mixtral-8x7b": 46.70,
    "mixtral-8x22b": 140.6, "qwen3-8b": 8.19, "qwen3-32b": 32.76, "qwen3-30b-a3b": 30.53,
    "qwen3-235b-a22b": 235.1, "gpt-oss-20b": 20.9, "gpt-oss-120b": 116.8,
    "deepseek-v3": 682.5,  # 671 and 11.5 of multi-token prediction
    "kimi-k2": 1026, "nemotron-3-nano": 31.6, "nemotron-3-super": 120.6, "nemotron-340b": 341,
    "t5-base": 0.248, "t5-3b": 2.85, "t5-11b": 11.1, "bart-large": 0.406,
    "transformer-big": 0.213, "bert-base-squad": 0.109, "bert-large-squad": 0.334,
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers_have_the_published_number_of_parameters(name):
    count = library.workload(name).parameter_count / 1e9
    assert count == pytest.approx(TRANSFORMERS[name], rel=0.015)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_and_products_are_the_published_ones(name):
    parameters, products = PUBLISHED[name]
    workload = library.workload(name)
    assert workload.parameter_count / 1e6 == pytest.approx(parameters, rel=0.02)
    if products:
        assert workload.forward_flops / 2e9 == pytest.approx(products, rel=0.015)


def test_files_are_as_their_generator_writes_them(monkeypatch, tmp_path):
    root = Path(__file__).parents[3]
    generator = root / "tests/generators/workloads"
    monkeypatch.syspath_prepend(str(generator))
    for module in ("write", "network", "classification", "vision", "sequences"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    import write

    write.main(tmp_path)
    for path in tmp_path.iterdir():
        kept = root / "carme" / "data" / "workloads" / path.name
        assert path.read_text() == kept.read_text(), f"run {generator}/write.py"
