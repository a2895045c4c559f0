"""Writes the workloads of carme/data/workloads that are described here as short programs.

Run it in the project's root: `./dev run python tests/generators/workloads/write.py`. A layer list
of some hundred lines is data that nobody reads; the programs are the descriptions of the papers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import classification
import sequences
import vision
from network import Network, toml

IMAGENET = {
    "name": "ILSVRC2012",
    "samples": 1281167,
    "sample_bytes": 115000,
    "input_elements": 150528,
    "format": "JPEG",
    "loaders": {
        "raw": {"bytes_per_second": 1e9, "note": "decoded beforehand: a copy; assumed"},
        "jpeg": {
            "bytes_per_second": 17e6,
            "note": "decoding on one CPU core, about 150 images a second; assumed, measure yours",
        },
    },
}
IMAGENET_SOURCE = "Russakovsky et al. 2015: 1,281,167 training images; 148 GB"
DECLARED = "declared: the size is that of the published benchmark"


class Description(NamedTuple):
    """A workload's file: how its layers are made, and its other fields."""

    title: str
    network: Callable[[], Network]
    source: str
    batch: int = 256
    epochs: int = 90
    optimizer: str = "momentum"
    dataset: dict[str, Any] = IMAGENET
    dataset_source: str = IMAGENET_SOURCE

    def file(self) -> str:
        """The text of the file."""
        return toml(
            self.title,
            self.network().layers,
            batch=self.batch,
            epochs=self.epochs,
            optimizer=self.optimizer,
            dataset=self.dataset,
            sources={"layers": self.source, "dataset": self.dataset_source},
        )


def data(name: str, samples: int, sample_bytes: int, elements: int, kind: str) -> dict[str, Any]:
    """A data set that is read while training."""
    return {
        "name": name,
        "samples": samples,
        "sample_bytes": sample_bytes,
        "input_elements": elements,
        "format": kind,
    }


HE, XIE = "He et al. 2016", "Xie et al. 2017, as torchvision"
RESNET_SOURCES = {
    "resnet-18": HE,
    "resnet-34": HE,
    "resnet-101": HE,
    "resnet-152": HE,
    "resnet-200": "He et al. 2016, Identity mappings; counted with the blocks of ResNet-152",
    "wide-resnet-50-2": "Zagoruyko and Komodakis 2016, as torchvision",
    "wide-resnet-101-2": "Zagoruyko and Komodakis 2016, as torchvision",
    "resnext-50-32x4d": XIE,
    "resnext-101-32x4d": XIE,
    "resnext-101-32x8d": XIE,
    "se-resnext-101-32x4d": "Hu et al. 2018",
}


def _title(name: str) -> str:
    words = {"resnet": "ResNet", "resnext": "ResNeXt", "wide": "Wide", "se": "SE", "bn": "with BN"}
    return " ".join(words.get(word, word) for word in name.split("-"))


COCO = data("COCO 2017", 118287, 160000, 270000, "JPEG")
COCO_SOURCE = "Lin et al. 2014: 118,287 training images; 19 GB"
LJ = data("LJ Speech", 13100, 290000, 145000, "WAV")
LJ_SOURCE = "Ito 2017: 13,100 clips, 24 hours"
LIBRI = data("LibriSpeech 960h", 281241, 213000, 107000, "FLAC")
LIBRI_SOURCE = "Panayotov et al. 2015: 960 hours, 281,241 utterances"
WT103 = data("WikiText-103", 537000, 768, 192, "tokens")
CRITEO = data("Criteo 1TB", 4195197692, 160, 40, "binary")

WORKLOADS: dict[str, Description] = {
    **{
        name: Description(_title(name), partial(classification.resnet, name), source)
        for name, source in RESNET_SOURCES.items()
    },
    **{
        name: Description(
            name.upper(), partial(classification.vgg, name), "Simonyan and Zisserman 2015"
        )
        for name in (
            "vgg-11",
            "vgg-13",
            "vgg-16",
            "vgg-11-bn",
            "vgg-13-bn",
            "vgg-16-bn",
            "vgg-19-bn",
        )
    },
    **{
        name: Description(
            name.replace("densenet", "DenseNet"),
            partial(classification.densenet, name),
            "Huang et al. 2017, as torchvision",
        )
        for name in classification.DENSENETS
    },
    **{
        f"squeezenet-{version}": Description(
            f"SqueezeNet {version}",
            partial(classification.squeezenet, f"squeezenet-{version}"),
            "Iandola et al. 2016, as torchvision",
        )
        for version in ("1.0", "1.1")
    },
    **{
        f"mnasnet-{width}": Description(
            f"MNASNet {width}",
            partial(classification.mnasnet, f"mnasnet-{width}"),
            "Tan et al. 2019, as torchvision",
        )
        for width in ("0.5", "0.75", "1.0", "1.3")
    },
    **{
        name: Description(
            name.replace("shufflenet", "ShuffleNet"),
            partial(classification.shufflenet_v2, name),
            "Ma et al. 2018, as torchvision",
        )
        for name in classification.SHUFFLENETS
    },
    **{
        f"efficientnet-{size}": Description(
            f"EfficientNet-{size.upper()}",
            partial(classification.efficientnet, f"efficientnet-{size}"),
            "Tan and Le 2019",
        )
        for size in classification.EFFICIENTNETS
    },
    "alexnet-owt": Description(
        "AlexNet in one tower", classification.alexnet, "Krizhevsky 2014, as torchvision"
    ),
    "mobilenet-v2": Description(
        "MobileNet v2", classification.mobilenet_v2, "Sandler et al. 2018, as torchvision"
    ),
    "inception-v3": Description(
        "Inception v3", classification.inception_v3, "Szegedy et al. 2016, no auxiliary head"
    ),
    "inception-v4": Description("Inception v4", classification.inception_v4, "Szegedy et al. 2017"),
    "vit-b-16": Description(
        "ViT-B/16", partial(classification.vit, 768, 12, 12, 16), "Dosovitskiy et al. 2021"
    ),
    "vit-l-16": Description(
        "ViT-L/16", partial(classification.vit, 1024, 24, 16, 16), "Dosovitskiy et al. 2021"
    ),
    "ssd300-resnet-50": Description(
        "SSD300 with ResNet-50",
        vision.ssd,
        "Liu et al. 2016, with ResNet-50 to its third stage",
        32,
        65,
        "momentum",
        COCO,
        COCO_SOURCE,
    ),
    "retinanet-resnext-50": Description(
        "RetinaNet with ResNeXt-50, 800 x 800",
        vision.retinanet,
        "Lin et al. 2017; MLPerf Training v2.0 reference: 264 classes",
        16,
        6,
        "adam",
        data("OpenImages MLPerf", 1170301, 300000, 1920000, "JPEG"),
        DECLARED,
    ),
    "mask-rcnn": Description(
        "Mask R-CNN with ResNet-50 and FPN",
        vision.mask_rcnn,
        "He et al. 2017, as maskrcnn-benchmark: 800 x 1216 pixels, 512 regions, 128 masks",
        16,
        12,
        "momentum",
        COCO,
        COCO_SOURCE,
    ),
    "u-net-3d": Description(
        "3D U-Net, 128 x 128 x 128",
        partial(vision.unet, (128, 128, 128), 1, (32, 64, 128, 256, 320, 320), 3),
        "Isensee et al. 2021, MLPerf Training v1.0 reference",
        2,
        1000,
        "momentum",
        data("KiTS19", 168, 8388608, 2097152, "NumPy"),
        DECLARED,
    ),
    "u-net-3d-brats": Description(
        "3D U-Net, 128 x 128 x 128, four channels",
        partial(vision.unet, (128, 128, 128), 4, (32, 64, 128, 256, 320, 320), 4),
        "Isensee et al. 2021, as nnU-Net: widths 32 to 320",
        2,
        100,
        "adam",
        data("BraTS", 484, 33554432, 8388608, "NumPy"),
        DECLARED,
    ),
    "u-net-2d-brats": Description(
        "2D U-Net, 192 x 160, four channels",
        partial(vision.unet, (192, 160), 4, (32, 64, 128, 256, 512, 512), 4),
        "Isensee et al. 2021, as nnU-Net: widths 32 to 512",
        64,
        100,
        "adam",
        data("BraTS slices", 75000, 491520, 122880, "NumPy"),
        DECLARED,
    ),
    "u-net-industrial": Description(
        "U-Net for industrial defects, 512 x 512",
        partial(vision.unet, (512, 512), 1, (32, 64, 128, 256, 512), 1, norm=False),
        "NVIDIA DeepLearningExamples, UNet_Industrial: 32 to 512 filters",
        16,
        100,
        "rmsprop",
        data("DAGM 2007", 1046, 262144, 262144, "PNG"),
        DECLARED,
    ),
    "v-net": Description(
        "V-Net on 32 x 32 x 32 voxels",
        vision.vnet,
        "Milletari et al. 2016",
        8,
        100,
        "rmsprop",
        data("Decathlon hippocampus", 260, 131072, 32768, "NIfTI"),
        DECLARED,
    ),
    "stable-diffusion": Description(
        "Stable Diffusion 2, the U-Net",
        vision.stable_diffusion,
        "Rombach et al. 2022: 320 channels times 1, 2, 4, 4; heads of 64; text of 77 x 1,024",
        512,
        1,
        "adam",
        data("LAION latents", 6000000, 65536, 16384, "NumPy"),
        DECLARED,
    ),
    "gnmt": Description(
        "GNMT, four layers",
        sequences.gnmt,
        "Wu et al. 2016, as NVIDIA DeepLearningExamples: hidden 1,024, vocabulary 32,320; "
        "32 tokens a side with padding, assumed",
        128,
        6,
        "adam",
        data("WMT16 en-de", 3498161, 200, 64, "tokens"),
        DECLARED,
    ),
    "transformer-xl-base": Description(
        "Transformer-XL base, 192 tokens",
        partial(sequences.transformer_xl, 512, 16, 8, 2048, 192),
        "Dai et al. 2019, as NVIDIA DeepLearningExamples: 192 tokens and as much memory",
        256,
        1,
        "adam",
        WT103,
        "Merity et al. 2017: 103 million tokens in pieces of 192",
    ),
    "transformer-xl-large": Description(
        "Transformer-XL large, 256 tokens",
        partial(sequences.transformer_xl, 1024, 18, 16, 4096, 256),
        "Dai et al. 2019: 18 layers of 1,024; 256 tokens and as much memory",
        128,
        1,
        "adam",
        WT103,
        "Merity et al. 2017: 103 million tokens",
    ),
    "tacotron-2": Description(
        "Tacotron 2",
        sequences.tacotron_2,
        "Shen et al. 2018, as NVIDIA DeepLearningExamples; 150 characters, 800 frames",
        48,
        1500,
        "adam",
        LJ,
        LJ_SOURCE,
    ),
    "waveglow": Description(
        "WaveGlow, segments of 8,000 samples",
        sequences.waveglow,
        "Prenger et al. 2019, with 512 channels as NVIDIA DeepLearningExamples",
        10,
        1000,
        "adam",
        LJ,
        LJ_SOURCE,
    ),
    "fastpitch": Description(
        "FastPitch",
        sequences.fastpitch,
        "Łańcucki 2021: 120 characters, 700 frames with padding",
        32,
        1000,
        "lamb",
        LJ,
        LJ_SOURCE,
    ),
    "jasper": Description(
        "Jasper 10x5",
        sequences.jasper,
        "Li et al. 2019; 13 s of audio: the mean of LibriSpeech with padding",
        32,
        400,
        "adam",
        LIBRI,
        LIBRI_SOURCE,
    ),
    "quartznet": Description(
        "QuartzNet 15x5",
        sequences.quartznet,
        "Kriman et al. 2020; 13 s of audio: the mean of LibriSpeech with padding",
        32,
        260,
        "adam",
        LIBRI,
        LIBRI_SOURCE,
    ),
    "rnn-t": Description(
        "RNN-T",
        sequences.rnn_t,
        "MLPerf v1.0 reference; 800 frames, 80 tokens, assumed",
        1024,
        60,
        "lamb",
        LIBRI,
        LIBRI_SOURCE,
    ),
    "dlrm": Description(
        "DLRM, dense part and a part of its tables",
        sequences.dlrm,
        "Naumov et al. 2019, sizes of the MLPerf v0.7 reference; one 26th of the tables, which are "
        "spread over GPUs",
        65536,
        1,
        "sgd",
        CRITEO,
        DECLARED,
    ),
    "dlrm-dcn": Description(
        "DLRM-DCNv2, dense part and a part of its tables",
        sequences.dlrm_dcn,
        "Wang et al. 2021, sizes of the MLPerf v3.0 reference; one 26th of the tables",
        65536,
        1,
        "sgd",
        CRITEO,
        DECLARED,
    ),
    "wide-and-deep": Description(
        "Wide & Deep",
        sequences.wide_and_deep,
        "Cheng et al. 2016, as NVIDIA DeepLearningExamples on Outbrain; tables of one size assumed",
        131072,
        20,
        "adam",
        data("Outbrain", 59761827, 400, 100, "binary"),
        DECLARED,
    ),
}


def main(folder: Path) -> None:
    """Write every file."""
    for name, description in WORKLOADS.items():
        (folder / f"{name}.toml").write_text(description.file(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if sys.argv[1:] else "carme/data/workloads"))
