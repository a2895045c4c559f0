"""Networks that classify images, as torchvision and the papers describe them."""

from __future__ import annotations

from network import Network

RESNETS = {
    "resnet-18": (2, 2, 2, 2),
    "resnet-34": (3, 4, 6, 3),
    "resnet-101": (3, 4, 23, 3),
    "resnet-152": (3, 8, 36, 3),
    "resnet-200": (3, 24, 36, 3),
    "wide-resnet-50-2": (3, 4, 6, 3),
    "wide-resnet-101-2": (3, 4, 23, 3),
    "resnext-50-32x4d": (3, 4, 6, 3),
    "resnext-101-32x4d": (3, 4, 23, 3),
    "resnext-101-32x8d": (3, 4, 23, 3),
    "se-resnext-101-32x4d": (3, 4, 23, 3),
}


def resnet(name: str, image: int = 224, *, body_only: bool = False) -> Network:
    """A ResNet, ResNeXt (32 groups), wide ResNet (twice the inner width) or one with SE blocks."""
    basic, squeeze = name in ("resnet-18", "resnet-34"), name.startswith("se-")
    groups = 32 if "resnext" in name else 1
    inner = {"8d": 4, "4d": 2}.get(name[-2:], 1) * (2 if name.startswith("wide") else 1)
    net = Network(3, (image, image))
    net.conv(64, 7, 2).pool()
    stages = RESNETS.get(name, (3, 4, 6, 3))
    for stage, blocks in enumerate(stages):
        width, stride = 64 * 2**stage, 1 if stage == 0 else 2
        _residual(
            net, width, stride, basic, groups, inner, squeeze, shortcut=stride > 1 or not basic
        )
        with net.times(blocks - 1):
            _residual(net, width, 1, basic, groups, inner, squeeze, shortcut=False)
    if not body_only:
        net.mean().dense(1000)
    return net


def _residual(
    net: Network,
    width: int,
    stride: int,
    basic: bool,
    groups: int,
    inner: int,
    squeeze: bool,
    shortcut: bool,
) -> None:
    outputs = width if basic else 4 * width
    if shortcut:
        with net.branch():
            net.conv(outputs, 1, stride, act=False)
    if basic:
        net.conv(width, 3, stride).conv(width, 3, act=False)
    else:
        net.conv(width * inner, 1).conv(width * inner, 3, stride, groups=groups)
        net.conv(outputs, 1, act=False)
    if squeeze:
        net.squeeze_excite(outputs // 16)
    net.join()


VGGS = {
    "vgg-11": (1, 1, 2, 2, 2),
    "vgg-13": (2, 2, 2, 2, 2),
    "vgg-16": (2, 2, 3, 3, 3),
    "vgg-19": (2, 2, 4, 4, 4),
}


def vgg(name: str) -> Network:
    """VGG, with batch normalisation if the name ends in `-bn`."""
    net = Network(3, (224, 224), norm=name.endswith("-bn"))
    for stage, count in enumerate(VGGS[name.removesuffix("-bn")]):
        for _ in range(count):
            net.conv(min(64 * 2**stage, 512))
        net.pool()
    return net.dense(4096, act=True).dense(4096, act=True).dense(1000)


def alexnet() -> Network:
    """AlexNet in one tower without local response normalisation (Krizhevsky 2014)."""
    net = Network(3, (224, 224), norm=False)
    net.conv(64, 11, 4, size=(55, 55)).pool(size=(27, 27)).conv(192, 5).pool(size=(13, 13))
    net.conv(384).conv(256).conv(256).pool(size=(6, 6))
    return net.dense(4096, act=True).dense(4096, act=True).dense(1000)


DENSENETS = {
    "densenet-121": (32, 64, (6, 12, 24, 16)),
    "densenet-161": (48, 96, (6, 12, 36, 24)),
    "densenet-169": (32, 64, (6, 12, 32, 32)),
    "densenet-201": (32, 64, (6, 12, 48, 32)),
}


def densenet(name: str) -> Network:
    """DenseNet: every layer normalises and reads all before it in its stage."""
    growth, first, stages = DENSENETS[name]
    net = Network(3, (224, 224), norm=False)
    net.conv(first, 7, 2, norm=True).pool()
    for stage, layers in enumerate(stages):
        for _ in range(layers):
            before = net.channels
            with net.branch():
                net.copy()  # the concatenation
                net.normalise()
                net.activate()
                net.conv(4 * growth, 1, norm=True).conv(growth, 3, act=False)
            net.channels = before + growth
        net.normalise()
        if stage < len(stages) - 1:
            net.activate()
            net.conv(net.channels // 2, 1, act=False).pool()
    net.activate()
    return net.mean().dense(1000)


def squeezenet(name: str) -> Network:
    """SqueezeNet 1.0 and 1.1."""
    net = Network(3, (224, 224), norm=False)
    old = name.endswith("1.0")
    if old:
        net.conv(96, 7, 2, size=(109, 109)).pool(size=(54, 54))
    else:
        net.conv(64, 3, 2, size=(111, 111)).pool(size=(55, 55))
    pools = {4: (27, 27), 8: (13, 13)} if old else {3: (27, 27), 5: (13, 13)}
    fires = ((2, 16, 64), (3, 16, 64), (4, 32, 128), (5, 32, 128), (6, 48, 192), (7, 48, 192),
             (8, 64, 256), (9, 64, 256))  # fmt: skip
    for index, squeeze, expand in fires:
        net.conv(squeeze, 1)
        with net.branch():
            net.conv(expand, 1)
        net.conv(expand, 3)
        net.channels = 2 * expand
        net.copy()
        if index in pools:
            net.pool(size=pools[index])
    return net.conv(1000, 1).mean()


def _inverted(
    net: Network, expand: int, outputs: int, kernel: int, stride: int, squeeze: int = 0
) -> None:
    """Expansion, depthwise convolution, projection: MobileNet v2's block."""
    shortcut = stride == 1 and outputs == net.channels
    width = net.channels * expand
    if expand > 1:
        net.conv(width, 1)
    net.conv(width, kernel, stride, groups=width)
    if squeeze:
        net.squeeze_excite(squeeze)
    net.conv(outputs, 1, act=False)
    if shortcut:
        net.join()


def mobilenet_v2() -> Network:
    """MobileNet v2."""
    net = Network(3, (224, 224))
    net.conv(32, 3, 2)
    settings = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
                (6, 160, 3, 2), (6, 320, 1, 1))  # fmt: skip
    _stages(net, ((e, c, n, s, 3) for e, c, n, s in settings))
    return net.conv(1280, 1).mean().dense(1000)


def _stages(net: Network, settings: object, squeeze: int = 0) -> None:
    for expand, outputs, blocks, stride, kernel in settings:  # type: ignore[attr-defined]
        reduced = max(net.channels // squeeze, 1) if squeeze else 0
        _inverted(net, expand, outputs, kernel, stride, reduced)
        if blocks > 1:
            with net.times(blocks - 1):
                reduced = max(net.channels // squeeze, 1) if squeeze else 0
                _inverted(net, expand, outputs, kernel, 1, reduced)


def _eighths(value: float) -> int:
    rounded = max(8, int(value + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * value else rounded


def mnasnet(name: str) -> Network:
    """MNASNet with the width of its name."""
    width = float(name.removeprefix("mnasnet-"))
    stem, first = _eighths(32 * width), _eighths(16 * width)
    net = Network(3, (224, 224))
    net.conv(stem, 3, 2).conv(stem, 3, groups=stem).conv(first, 1, act=False)
    settings = ((3, 24, 3, 2, 3), (3, 40, 3, 2, 5), (6, 80, 3, 2, 5), (6, 96, 2, 1, 3),
                (6, 192, 4, 2, 5), (6, 320, 1, 1, 3))  # fmt: skip
    _stages(net, ((e, _eighths(c * width), n, s, k) for e, c, n, s, k in settings))
    return net.conv(1280, 1).mean().dense(1000)


EFFICIENTNETS = {"b0": (1.0, 1.0, 224), "b1": (1.0, 1.1, 240), "b2": (1.1, 1.2, 260),
                 "b3": (1.2, 1.4, 300), "b4": (1.4, 1.8, 380), "b5": (1.6, 2.2, 456),
                 "b7": (2.0, 3.1, 600)}  # fmt: skip


def efficientnet(name: str) -> Network:
    """EfficientNet by its letter and number: width, depth and image size grow together."""
    width, depth, image = EFFICIENTNETS[name.removeprefix("efficientnet-")]
    net = Network(3, (image, image))
    net.conv(_eighths(32 * width), 3, 2)
    settings = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3),
                (6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3))  # fmt: skip
    scaled = ((e, _eighths(c * width), -int(-n * depth // 1), s, k) for e, c, n, s, k in settings)
    _stages(net, scaled, squeeze=4)
    return net.conv(_eighths(1280 * width), 1).mean().dense(1000)


SHUFFLENETS = {
    "shufflenet-v2-x0.5": (48, 96, 192, 1024),
    "shufflenet-v2-x1.0": (116, 232, 464, 1024),
    "shufflenet-v2-x1.5": (176, 352, 704, 1024),
    "shufflenet-v2-x2.0": (244, 488, 976, 2048),
}


def shufflenet_v2(name: str) -> Network:
    """ShuffleNet v2: half of the channels pass each block."""
    *widths, last = SHUFFLENETS[name]
    net = Network(3, (224, 224))
    net.conv(24, 3, 2).pool()
    for width, blocks in zip(widths, (4, 8, 4), strict=True):
        half = width // 2
        with net.branch():
            net.conv(net.channels, 3, 2, groups=net.channels, act=False).conv(half, 1)
        net.conv(half, 1).conv(half, 3, 2, groups=half, act=False).conv(half, 1)
        net.channels = width
        net.copy()
        with net.times(blocks - 1):
            net.channels = half
            net.conv(half, 1).conv(half, 3, groups=half, act=False).conv(half, 1)
            net.channels = width
            net.copy()
    return net.conv(last, 1).mean().dense(1000)


def _branches(net: Network, *branches: list[tuple[int, int | tuple[int, int]]]) -> None:
    """Branches of convolutions (filters, kernel) side by side, then concatenated."""
    total = 0
    for branch in branches:
        with net.branch():
            for filters, kernel in branch:
                net.conv(filters, kernel)
            total += net.channels
    net.channels = total
    net.copy()


def inception_v3() -> Network:
    """Inception v3 on 299 x 299 pixels, without the auxiliary head."""
    net = Network(3, (299, 299))
    net.conv(32, 3, 2, valid=True).conv(32, 3, valid=True).conv(64)
    net.pool(size=(73, 73)).conv(80, 1).conv(192, 3, valid=True).pool(size=(35, 35))
    for pool in (32, 64, 64):
        _branches(net, [(64, 1)], [(48, 1), (64, 5)], [(64, 1), (96, 3), (96, 3)], [(pool, 1)])
    with net.branch():
        net.conv(64, 1).conv(96).conv(96, 3, 2, valid=True)
    net.conv(384, 3, 2, valid=True)
    net.channels = 768
    net.copy()
    for c in (128, 160, 160, 192):
        _branches(net, [(192, 1)], [(c, 1), (c, (1, 7)), (192, (7, 1))],
                  [(c, 1), (c, (7, 1)), (c, (1, 7)), (c, (7, 1)), (192, (1, 7))],
                  [(192, 1)])  # fmt: skip
    with net.branch():
        net.conv(192, 1).conv(320, 3, 2, valid=True)
    net.conv(192, 1).conv(192, (1, 7)).conv(192, (7, 1)).conv(192, 3, 2, valid=True)
    net.channels = 1280
    net.copy()
    for _ in range(2):
        with net.branch():
            net.conv(384, 1)
            with net.branch():
                net.conv(384, (1, 3))
            net.conv(384, (3, 1))
        with net.branch():
            net.conv(448, 1).conv(384)
            with net.branch():
                net.conv(384, (1, 3))
            net.conv(384, (3, 1))
        with net.branch():
            net.conv(320, 1)
        with net.branch():
            net.conv(192, 1)
        net.channels = 2048
        net.copy()
    return net.mean().dense(1000)


def inception_v4() -> Network:
    """Inception v4 on 299 x 299 pixels."""
    net = Network(3, (299, 299))
    net.conv(32, 3, 2, valid=True).conv(32, 3, valid=True).conv(64)
    with net.branch():
        net.pool(size=(73, 73))
    net.conv(96, 3, 2, valid=True)
    net.channels = 160
    net.copy()
    with net.branch():
        net.conv(64, 1).conv(96, 3, valid=True)
    net.conv(64, 1).conv(64, (7, 1)).conv(64, (1, 7)).conv(96, 3, valid=True)
    net.channels = 192
    net.copy()
    net.conv(192, 3, 2, valid=True)
    net.channels = 384
    net.copy()
    for _ in range(4):
        _branches(net, [(96, 1)], [(96, 1)], [(64, 1), (96, 3)], [(64, 1), (96, 3), (96, 3)])
    with net.branch():
        net.conv(192, 1).conv(224).conv(256, 3, 2, valid=True)
    net.conv(384, 3, 2, valid=True)
    net.channels = 1024
    net.copy()
    for _ in range(7):
        _branches(net, [(128, 1)], [(384, 1)], [(192, 1), (224, (1, 7)), (256, (7, 1))],
                  [(192, 1), (192, (1, 7)), (224, (7, 1)), (224, (1, 7)),
                   (256, (7, 1))])  # fmt: skip
    with net.branch():
        net.conv(192, 1).conv(192, 3, 2, valid=True)
    net.conv(256, 1).conv(256, (1, 7)).conv(320, (7, 1)).conv(320, 3, 2, valid=True)
    net.channels = 1536
    net.copy()
    for _ in range(3):
        with net.branch():
            net.conv(256, 1)
        with net.branch():
            net.conv(256, 1)
        with net.branch():
            net.conv(384, 1)
            with net.branch():
                net.conv(256, (1, 3))
            net.conv(256, (3, 1))
        with net.branch():
            net.conv(384, 1).conv(448, (1, 3)).conv(512, (3, 1))
            with net.branch():
                net.conv(256, (3, 1))
            net.conv(256, (1, 3))
        net.copy()
    return net.mean().dense(1000)


def vit(hidden: int, layers: int, heads: int, patch: int, image: int = 224) -> Network:
    """A vision transformer with a class token."""
    tokens = (image // patch) ** 2 + 1
    net = Network(3, (image, image), norm=False)
    net.conv(hidden, patch, patch, act=False)
    net.size = (tokens,)
    with net.times(layers):
        transformer_block(net, hidden, heads, tokens)
    net.normalise()
    net.mean().dense(1000)
    return net


def transformer_block(
    net: Network, hidden: int, heads: int, tokens: int, inner: int | None = None
) -> None:
    """Self-attention and two dense layers, each behind a normalisation and beside a sum."""
    net.normalise()
    net.dense(3 * hidden, positions=tokens)
    net.channels = hidden
    net.add("attention", heads=heads, width=hidden // heads, sequence=tokens)
    net.dense(hidden, positions=tokens).join()
    net.normalise()
    net.dense(inner or 4 * hidden, positions=tokens)
    net.add("elementwise", elements=net.elements)
    net.dense(hidden, positions=tokens).join()
