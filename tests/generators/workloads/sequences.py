"""Networks for speech, translation and language that are not plain transformers."""

from __future__ import annotations

from network import Network


def gnmt(tokens: int = 32) -> Network:
    """GNMT: four LSTM layers each way, the first of the encoder in both directions."""
    net = Network(1024, (tokens,), norm=False)
    # Encoder and decoder share the table.
    net.add("embedding", entries=32320, width=1024, lookups=tokens)
    net.add("embedding", entries=32320, width=1024, lookups=tokens, parameters=0)
    net.add("lstm", inputs=1024, hidden=1024, steps=tokens, directions=2)
    net.add("lstm", inputs=2048, hidden=1024, steps=tokens)
    with net.times(2):
        net.add("lstm", inputs=1024, hidden=1024, steps=tokens)
        net.join()
    net.add("lstm", inputs=1024, hidden=1024, steps=tokens)
    net.dense(1024, positions=tokens)
    net.dense(1024, positions=tokens)
    with net.times(3):  # the sum of query and key, its scale, tanh
        net.add("elementwise", elements=tokens * tokens * 1024)
    net.add("dense", inputs=1024, outputs=1, positions=tokens * tokens)
    net.add("product", rows=tokens, columns=1024, depth=tokens)
    with net.times(3):
        net.add("lstm", inputs=2048, hidden=1024, steps=tokens)
        net.join()
    net.dense(32320, positions=tokens)
    net.add("elementwise", elements=tokens * 32320, passes=2)
    return net


def transformer_xl(hidden: int, layers: int, heads: int, inner: int, tokens: int) -> Network:
    """Transformer-XL on `tokens` and as much memory, with relative positions."""
    width, keys = hidden // heads, 2 * tokens
    net = Network(hidden, (tokens,), norm=False)
    net.add("embedding", entries=267735, width=hidden, lookups=tokens)
    with net.times(layers):
        net.dense(hidden, positions=tokens)
        net.add("dense", inputs=hidden, outputs=2 * hidden, positions=keys)
        net.channels = hidden
        with net.times(2):  # by content, by position
            net.add("product", rows=tokens, columns=keys, depth=width, count=heads)
        scores = heads * tokens * keys
        net.add("elementwise", elements=scores, passes=2)  # shift of the positions: pad and copy
        net.add("elementwise", elements=2 * scores, outputs=scores)  # sum
        with net.times(3):  # scale, mask, dropout
            net.add("elementwise", elements=scores)
        net.add("elementwise", elements=scores, passes=2)  # softmax
        net.add("product", rows=tokens, columns=width, depth=keys, count=heads)
        net.dense(hidden, positions=tokens).join()
        net.normalise()
        net.dense(inner, positions=tokens, act=True).dense(hidden, positions=tokens).join()
        net.normalise()
    # Most tokens are in the first cluster of the adaptive softmax.
    net.add("dense", inputs=hidden, outputs=20000, positions=tokens, shared=True)
    net.add("elementwise", elements=20000 * tokens, passes=2)
    return net


def tacotron_2(characters: int = 150, frames: int = 800) -> Network:
    """Tacotron 2: the decoder writes one mel frame a step, in a loop of small kernels."""
    net = Network(512, (characters,))
    net.add("embedding", entries=148, width=512, lookups=characters)
    with net.times(3):
        net.conv(512, 5)
    net.add("lstm", inputs=512, hidden=256, steps=characters, directions=2)
    net.norm, net.size, net.channels = False, (frames,), 80
    net.dense(256, positions=frames, act=True).dense(256, positions=frames, act=True)
    for steps, shared in ((1, False), (frames - 1, True)):
        weights = {"shared": True} if shared else {}
        with net.times(steps):
            for inputs in (768, 1536):  # the LSTM cells of attention and decoder
                net.add("dense", inputs=inputs, outputs=4096, **weights)
                net.add("dense", inputs=1024, outputs=4096, **weights)
                net.add("elementwise", elements=8192, outputs=2048, in_place=True)
                if inputs == 768:
                    _location_attention(net, characters, weights)
            net.add("dense", inputs=1536, outputs=81, **weights)
    net.size, net.channels = (frames,), 80
    net.norm = True
    net.conv(512, 5)
    with net.times(3):
        net.conv(512, 5)
    return net.conv(80, 5, act=False)


def _location_attention(net: Network, characters: int, weights: dict[str, bool]) -> None:
    """Scores over the characters from the query, the memory and earlier weights."""
    inner = characters * 128
    net.add("dense", inputs=1024, outputs=128, **weights)
    net.add("elementwise", elements=2 * characters, outputs=32 * characters, in_place=True)
    net.add("dense", inputs=32, outputs=128, positions=characters, **weights)
    net.add("elementwise", elements=3 * inner, outputs=inner, in_place=True)
    net.add("elementwise", elements=inner)  # tanh
    net.add("dense", inputs=128, outputs=1, positions=characters, **weights)
    net.add("elementwise", elements=characters, passes=2)  # softmax
    net.add("elementwise", elements=512 * characters, outputs=512, in_place=True)  # context
    net.add("elementwise", elements=2 * characters, outputs=characters, in_place=True)


def waveglow(samples: int = 8000) -> Network:
    """WaveGlow: 12 flows of 8 dilated convolutions with 512 channels."""
    positions = samples // 8
    net = Network(8, (positions,), norm=False)
    with net.times(12):
        net.conv(8, 1, act=False)
        net.channels = 4
        net.conv(512, 1, act=False)
        outer = net.repeat
        net.repeat = outer * 8
        net.conv(1024, 3, act=False, dilated=True)
        net.add("convolution", channels=640, filters=1024, kernel=[1], output=[positions])
        net.add("elementwise", elements=2 * 1024 * positions, outputs=512 * positions)
        net.channels = 512
        net.conv(1024, 1, act=False)
        net.channels = 512
        net.join(inputs=3)
        net.repeat = outer
        net.conv(8, 1, act=False)
        net.copy()
    return net


def jasper(frames: int = 1300, mels: int = 64) -> Network:
    """Jasper 10x5 with dense residual connections counted as single ones."""
    net = Network(mels, (frames,))
    net.conv(256, 11, 2)
    for width, kernel in ((256, 11), (384, 13), (512, 17), (640, 21), (768, 25)):
        for block in range(2):
            with net.branch():
                net.conv(width, 1, act=False)
            if block == 0:
                net.conv(width, kernel)
            with net.times(5 if block else 4):
                net.conv(width, kernel)
            net.join()
    net.conv(896, 29).conv(1024, 1)
    return net.conv(29, 1, norm=False, act=False)


def quartznet(frames: int = 1300, mels: int = 64) -> Network:
    """QuartzNet 15x5: Jasper with separable convolutions."""
    net = Network(mels, (frames,))
    net.conv(mels, 33, 2, groups=mels, norm=False, act=False).conv(256, 1)
    for width, kernel in ((256, 33), (256, 39), (512, 51), (512, 63), (512, 75)):
        for _ in range(3):
            with net.branch():
                net.conv(width, 1, act=False)
            net.conv(net.channels, kernel, groups=net.channels, norm=False, act=False)
            net.conv(width, 1)
            with net.times(4):
                net.conv(width, kernel, groups=width, norm=False, act=False).conv(width, 1)
            net.join()
    net.conv(512, 87, groups=512, norm=False, act=False).conv(512, 1).conv(1024, 1)
    return net.conv(29, 1, norm=False, act=False)


def rnn_t(frames: int = 800, tokens: int = 80) -> Network:
    """RNN-T of MLPerf: LSTM encoder with time halved after two layers, small predictor, joint."""
    net = Network(240, (frames // 3,), norm=False)
    net.add("lstm", inputs=240, hidden=1024, steps=frames // 3)
    net.add("lstm", inputs=1024, hidden=1024, steps=frames // 3)
    net.add("lstm", inputs=2048, hidden=1024, steps=frames // 6)
    with net.times(2):
        net.add("lstm", inputs=1024, hidden=1024, steps=frames // 6)
    net.add("embedding", entries=1023, width=512, lookups=tokens)
    with net.times(2):
        net.add("lstm", inputs=512, hidden=512, steps=tokens)
    net.add("dense", inputs=1024, outputs=512, positions=frames // 6)
    net.add("dense", inputs=512, outputs=512, positions=tokens)
    joint = frames // 6 * tokens
    net.add("elementwise", elements=joint * 512)
    net.add("dense", inputs=512, outputs=1024, positions=joint)
    net.add("elementwise", elements=joint * 1024, passes=2)
    return net


def fastpitch(characters: int = 120, frames: int = 700) -> Network:
    """FastPitch: six transformer blocks of convolutions on text, six on mel frames."""
    net = Network(384, (characters,), norm=False)
    net.add("embedding", entries=148, width=384, lookups=characters)
    for positions in (characters, frames):
        net.size = (positions,)
        with net.times(6):
            net.dense(192, positions=positions)
            net.add("attention", heads=1, width=64, sequence=positions)
            net.channels = 64
            net.dense(384, positions=positions).join()
            net.normalise()
            net.conv(1536, 3).conv(384, 3, act=False).join()
            net.normalise()
    return net.dense(80, positions=frames)


def wide_and_deep() -> Network:
    """Wide & Deep on the Outbrain data: 13 features in tables, 13 numbers, five dense layers."""
    net = Network(13 * 75 + 13, (), norm=False)
    net.add("embedding", entries=1_130_000, width=75, lookups=13)
    for _ in range(5):
        net.dense(1024, act=True)
    return net.dense(1)


def dlrm() -> Network:
    """DLRM on the Criteo data: 26 tables of width 128, their products with the dense features."""
    net = Network(13, (), norm=False)
    net.dense(512, act=True).dense(256, act=True).dense(128, act=True)
    net.add("embedding", entries=188_000_000 // 26 // 26, width=128, lookups=26)
    net.add("product", rows=27, columns=27, depth=128)
    net.channels = 479
    net.dense(1024, act=True).dense(1024, act=True).dense(512, act=True).dense(256, act=True)
    return net.dense(1)


def dlrm_dcn() -> Network:
    """DLRM with three crossing layers of rank 512 (MLPerf's DLRM-DCNv2)."""
    net = Network(13, (), norm=False)
    net.dense(512, act=True).dense(256, act=True).dense(128, act=True)
    net.add("embedding", entries=204_000_000 // 26 // 26, width=128, lookups=214)
    net.channels = 27 * 128
    with net.times(3):
        net.dense(512)
        net.dense(27 * 128).join()
    net.dense(1024, act=True).dense(1024, act=True).dense(512, act=True).dense(256, act=True)
    return net.dense(1)
