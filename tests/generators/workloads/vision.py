"""Networks that detect, segment and draw."""

from __future__ import annotations

from math import prod

from classification import resnet
from network import Network


def _trunk(
    image: tuple[int, int],
    stages: tuple[tuple[int, int, int], ...],
    groups: int = 1,
    inner: int = 1,
) -> Network:
    """The stem and bottleneck stages (width, blocks, stride) of a ResNet or ResNeXt."""
    net = Network(3, image)
    net.conv(64, 7, 2).pool()
    for width, blocks, stride in stages:
        for count, step in ((1, stride), (blocks - 1, 1)):
            with net.times(count):
                if count == 1:
                    with net.branch():
                        net.conv(4 * width, 1, step, act=False)
                net.conv(width * inner, 1).conv(width * inner, 3, step, groups=groups)
                net.conv(4 * width, 1, act=False).join()
    return net


def ssd() -> Network:
    """SSD300 with ResNet-50 up to its third stage, which keeps its resolution."""
    net = _trunk((300, 300), ((64, 3, 1), (128, 4, 2), (256, 6, 1)))
    _ssd_head(net, 4)
    for squeeze, width, boxes, valid in (
        (256, 512, 6, False), (256, 512, 6, False), (128, 256, 6, False), (128, 256, 4, True),
        (128, 256, 4, True),
    ):  # fmt: skip
        net.conv(squeeze, 1).conv(width, 3, 1 if valid else 2, valid=valid)
        _ssd_head(net, boxes)
    return net


def _ssd_head(net: Network, boxes: int) -> None:
    with net.branch():
        net.conv(boxes * 4, 3, norm=False, act=False)
    with net.branch():
        net.conv(boxes * 81, 3, norm=False, act=False)


def retinanet() -> Network:
    """RetinaNet on 800 x 800 pixels with ResNeXt-50 32x4d and 264 classes (MLPerf)."""
    net = _trunk((800, 800), ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)), 32, 2)
    net.norm = False
    for size, channels in ((100, 512), (50, 1024), (25, 2048), (13, 256), (7, 256)):
        net.size, net.channels = (size, size), channels
        net.conv(256, 1 if size > 20 else 3, act=False)
        if size > 20:
            net.conv(256, act=False)
    # The two heads have the same weights on all levels: their positions side by side.
    net.size, net.channels = (100**2 + 50**2 + 25**2 + 13**2 + 7**2, 1), 256
    for outputs in (9 * 264, 9 * 4):
        with net.branch():
            for _ in range(4):
                net.conv(256)
            net.conv(outputs, act=False)
    return net


def mask_rcnn() -> Network:
    """Mask R-CNN with ResNet-50 and a feature pyramid on 800 x 1216 pixels."""
    net = _trunk((800, 1216), ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)))
    # Its normalisations are frozen: a scale and a shift, which store nothing.
    for layer in net.layers:
        if "passes" in layer:
            del layer["passes"]
            layer["in_place"] = True
    net.norm = False
    positions = 0
    for stride, channels in ((4, 256), (8, 512), (16, 1024), (32, 2048), (64, 256)):
        net.size, net.channels = (-(-800 // stride), -(-1216 // stride)), channels
        positions += prod(net.size)
        if stride < 64:
            net.conv(256, 1, act=False).conv(256, 3, act=False)
    # The region proposals have the same weights on all levels: their positions side by side.
    net.size, net.channels = (positions, 1), 256
    net.conv(256)
    for outputs in (3, 12):
        with net.branch():
            net.conv(outputs, 1, act=False)
    net.channels, net.size = 256 * 49, (512,)
    net.copy()
    net.dense(1024, positions=512, act=True).dense(1024, positions=512, act=True)
    with net.branch():
        net.dense(81, positions=512)
    net.dense(324, positions=512)
    net.channels, net.size = 256, (14, 14 * 128)  # 128 regions have a mask
    for _ in range(4):
        net.conv(256)
    return net.up(256).conv(81, 1, act=False)


def unet(
    size: tuple[int, ...],
    channels: int,
    widths: tuple[int, ...],
    classes: int,
    *,
    norm: bool = True,
) -> Network:
    """A U-Net with two convolutions at each width and as many on the way back."""
    net = Network(channels, size, norm=norm)
    sizes = []
    for level, width in enumerate(widths):
        net.conv(width, 3, 2 if level else 1).conv(width)
        sizes.append(net.size)
    for width, target in zip(widths[-2::-1], sizes[-2::-1], strict=True):
        net.up(width)
        net.size = target
        net.channels = 2 * width
        net.copy()
        net.conv(width).conv(width)
    return net.conv(classes, 1, norm=False, act=False)


def vnet() -> Network:
    """V-Net on 32 x 32 x 32 voxels, as used for the hippocampus."""
    net = Network(1, (32, 32, 32))
    sizes, widths = [], (16, 32, 64, 128, 256)
    for level, (width, count) in enumerate(zip(widths, (1, 2, 3, 3, 3), strict=True)):
        if level:
            net.conv(width, 2, 2)
        for _ in range(count):
            net.conv(width, 5 if level == 0 else 3)
        net.join()
        sizes.append(net.size)
    for level in (3, 2, 1, 0):
        net.up(widths[level])
        net.size, net.channels = sizes[level], 2 * widths[level]
        net.copy()
        net.conv(widths[level])
        net.join()
    return net.conv(3, 1, norm=False, act=False)


def stable_diffusion() -> Network:
    """The U-Net of Stable Diffusion 2 on latents of 64 x 64, with 77 text tokens of 1,024."""
    net = Network(4, (64, 64), norm=False)
    net.conv(320, act=False)
    skips = [320]
    for level, width in enumerate((320, 640, 1280, 1280)):
        for _ in range(2):
            _diffusion_block(net, width, attend=level < 3)
            skips.append(width)
        if level < 3:
            net.conv(width, 3, 2, act=False)
            skips.append(width)
    _diffusion_block(net, 1280, attend=True)
    _diffusion_block(net, 1280, attend=False)
    for level, width in ((3, 1280), (2, 1280), (1, 640), (0, 320)):
        for _ in range(3):
            net.channels += skips.pop()
            net.copy()
            _diffusion_block(net, width, attend=level < 3)
        if level:
            net.resize().conv(width, act=False)
    net.normalise()
    return net.conv(4, act=False)


def _diffusion_block(net: Network, width: int, *, attend: bool) -> None:
    inputs = net.channels
    if inputs != width:
        with net.branch():
            net.conv(width, 1, act=False)
    for _ in range(2):
        net.normalise()
        net.activate()
        net.conv(width, act=False)
    net.add("dense", inputs=1280, outputs=width)
    net.join()
    if not attend:
        return
    size, tokens = net.size, net.size[0] * net.size[1]
    heads = width // 64
    net.normalise()
    net.conv(width, 1, act=False)
    net.size = (tokens,)
    for keys, key_width in ((tokens, width), (77, 1024)):
        net.normalise()
        net.dense(width, positions=tokens)
        net.add("dense", inputs=key_width, outputs=2 * width, positions=keys)
        if keys == tokens:
            net.add("attention", heads=heads, width=64, sequence=tokens)
        else:
            net.add("product", rows=tokens, columns=keys, depth=64, count=heads)
            net.add("product", rows=tokens, columns=64, depth=keys, count=heads)
        net.dense(width, positions=tokens).join()
    net.normalise()
    net.dense(8 * width, positions=tokens)
    net.add("elementwise", elements=net.elements, outputs=net.elements // 2)
    net.channels = 4 * width
    net.dense(width, positions=tokens).join()
    net.size = size
    net.conv(width, 1, act=False).join()


__all__ = ["mask_rcnn", "resnet", "retinanet", "ssd", "stable_diffusion", "unet", "vnet"]
