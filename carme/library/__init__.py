"""The library of hardware and workloads for `carme.simulator`, read from TOML files, and plans from
their fields.

An entry is given by a bundled name (`v100`), by a path to a file of the same form, or by a TOML
table inside a cluster file. Files refer to each other (a node to its GPU) by name.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from carme.data import names as names
from carme.errors import ConfigError, InputError, MissingError
from carme.simulator.hardware import (
    Cluster,
    Gpu,
    LinkModel,
    NodeModel,
    StorageModel,
)
from carme.simulator.plans import Asynchronous, Averaging, BasePlan, ParameterServer, Synchronous
from carme.simulator.workload import Workload
from carme.validation import explain

M = TypeVar("M", bound=BaseModel)
PLANS: dict[str, type[BasePlan]] = {
    "synchronous": Synchronous,
    "asynchronous": Asynchronous,
    "parameter-server": ParameterServer,
    "averaging": Averaging,
}
_COUNTED = re.compile(r"(?:(\d+)\s*[x×*]\s*)?([A-Za-z0-9][A-Za-z0-9._ -]*)")


def gpu(name: str) -> Gpu:
    """A GPU by name."""
    return _bundled("gpus", name, Gpu.model_validate)


def link(name: str) -> LinkModel:
    """A type of link by name."""
    return _bundled("links", name, LinkModel.model_validate)


def storage(name: str) -> StorageModel:
    """A file system by name."""
    return _bundled("storage", name, StorageModel.model_validate)


def node(name: str) -> NodeModel:
    """A node by name, with its GPU and links."""
    return _bundled("nodes", name, _build_node)


def workload(name: str, dimensions: Mapping[str, int] | None = None) -> Workload:
    """A workload by bundled name, or from a .toml, .onnx or Hugging Face .json file; `dimensions`
    are sizes that an ONNX file leaves open, or the sequence length for a .json file."""
    path = Path(name)
    if path.suffix == ".onnx":
        from carme.library.onnx import read_onnx  # only then is the package needed

        return read_onnx(path, dimensions)
    if path.suffix == ".json":
        from carme.library.huggingface import read_config

        return read_config(path, dimensions)
    if dimensions:
        raise InputError(
            f"{name} has no open dimensions", "give them with an .onnx or .json file only"
        )
    if path.suffix == ".toml":
        data = {"name": _plain(path.stem), **_read(path)}
        return _validate(Workload, data, str(path))
    return _bundled("workloads", name, Workload.model_validate)


def parse_dimensions(texts: Sequence[str]) -> dict[str, int]:
    """`["sequence=512"]` → `{"sequence": 512}`."""
    dimensions = {}
    for text in texts:
        name, equals, size = text.rpartition("=")
        if not equals or not name or not size.isdecimal() or not 1 <= int(size[:13]) <= 10**12:
            raise InputError(
                f"{text[:100]!r} is no size of a dimension", "write NAME=SIZE, such as sequence=512"
            )
        dimensions[name] = int(size)
    return dimensions


def cluster(name: str) -> Cluster:
    """A cluster by bundled name or from a .toml file."""
    path = Path(name)
    if path.suffix == ".toml":
        return build_cluster({"name": _plain(path.stem), **_read(path)}, str(path))
    return _bundled("clusters", name, build_cluster)


def cluster_of(
    gpus: str,
    *,
    node_name: str | None = None,
    network: str | None = None,
    nodes: int | None = None,
    own_gpu: Gpu | None = None,
) -> Cluster:
    """The smallest cluster with the GPUs of `8xV100` and at least `nodes` nodes: their usual ones,
    or `node_name`. `own_gpu` takes the place of the bundled GPU of that name."""
    count, gpu_name = parse_gpus(gpus)
    chosen_gpu = own_gpu or gpu(gpu_name)
    host = node(node_name or chosen_gpu.default_node)
    if (own_gpu or not node_name) and host.gpu != chosen_gpu:
        name, title = f"{host.name}-{chosen_gpu.name}"[:48], f"{host.title} with {chosen_gpu.title}"
        host = host.model_copy(update={"gpu": chosen_gpu, "name": name, "title": title})
    if host.gpu.name != chosen_gpu.name:
        raise InputError(
            f"{host.name} has {host.gpu.name}, not {gpu_name}", "name the node or the GPU, not both"
        )
    if network:
        host = host.model_copy(update={"network": link(network), "adapters": 1})
    nodes = max(-(-count // host.gpus), nodes or 1)
    return Cluster(
        name=f"{nodes}x{host.name}", title=f"{nodes} x {host.title}", node=host, nodes=nodes
    )


def parse_gpus(text: str) -> tuple[int, str]:
    """`8xV100` → (8, "v100"); `V100` → (1, "v100")."""
    match = _COUNTED.fullmatch(text.strip())
    if not match or match[1] == "0":
        raise InputError(f"{text!r} does not name GPUs", "write a number and a GPU, such as 8xV100")
    return int(match[1] or 1), _plain(match[2])


def match_gpu(slurm_name: str) -> str | None:
    """The bundled GPU that Slurm's type means: `nvidia_a100-sxm4-80gb` → `a100-80gb`."""
    name = re.sub(r"[_\s]+", "-", slurm_name.lower())
    name = re.sub(r"\b(virtual|nvidia|tesla|geforce|quadro|gtx)-", "", name)
    bundled = names("gpus")
    if name in bundled:
        return name
    words = set(re.findall(r"[a-z0-9]+", name))
    fits = [k for k in bundled if set(re.findall(r"[a-z0-9]+", k)) <= words]
    # The form factor affects speed more than the memory size does.
    return max(fits, key=lambda k: ("pcie" in k, len(k)), default=None)


def plan(kind: str, fields: dict[str, Any]) -> BasePlan:
    """A plan from its fields. Raises InputError that names every wrong field."""
    model = PLANS[kind]
    if unknown := sorted(set(fields) - set(model.model_fields)):
        allowed = ", ".join(name for name in model.model_fields if name != "kind")
        raise InputError(f"a {kind} plan has no {', '.join(unknown)}", f"it has {allowed}")
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise InputError("; ".join(explain(error))) from None


def build_cluster(data: dict[str, Any], source: str = "cluster") -> Cluster:
    """A cluster from its table: `node` is a bundled name or a table, likewise `storage`."""
    data = dict(data)
    if "node" in data:
        data["node"] = _resolve(data["node"], node, _build_node, f"{source}: node")
    if "storage" in data:
        data["storage"] = _resolve(
            data["storage"], storage, StorageModel.model_validate, f"{source}: storage"
        )
    return _validate(Cluster, data, source)


def _build_node(data: dict[str, Any]) -> NodeModel:
    data = dict(data)
    base = data.pop("like", None)
    if base:
        data = {**node(base).model_dump(), **data}
    for key, find, model in (
        ("gpu", gpu, Gpu),
        ("gpu_link", link, LinkModel),
        ("network", link, LinkModel),
    ):
        if key in data:
            data[key] = _resolve(data[key], find, model.model_validate, key)
    return NodeModel.model_validate(data)


def _resolve(
    value: Any, by_name: Callable[[str], M], build: Callable[[Any], M], where: str
) -> M | Any:
    if isinstance(value, str):
        return by_name(value)
    if isinstance(value, dict):
        return build({"name": _plain(where.split()[-1]), **value})
    return value


_entries: dict[tuple[str, str], Any] = {}
"""Bundled entries that have been read, by kind and name."""


def _bundled(kind: str, name: str, build: Callable[[dict[str, Any]], M]) -> M:
    plain = _plain(name)
    if (kind, plain) in _entries:
        entry: M = _entries[kind, plain]
        return entry
    bundled = names(kind)
    if plain not in bundled:
        hint = ", ".join(bundled)
        if close := get_close_matches(plain, bundled, n=3, cutoff=0.5):
            hint = f"did you mean {' or '.join(close)}? all: {hint}"
        raise MissingError(f"no {kind.removesuffix('s')} {name!r}", hint)
    text = files("carme.data").joinpath(kind, f"{plain}.toml").read_text(encoding="utf-8")
    built = _entries[kind, plain] = build({"name": plain, **tomllib.loads(text)})
    return built


def _plain(name: str) -> str:
    return re.sub(r"[\s_]+", "-", name.strip().lower())


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MissingError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


def _validate(model: type[M], data: dict[str, Any], source: str) -> M:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError("\n".join(f"{source}: {line}" for line in explain(error))) from None
