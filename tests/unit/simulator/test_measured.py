"""Against published measurements, which are not part of this project."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from carme.errors import InputError, MissingError
from carme.measurements.commands import validate
from carme.measurements.traces import accuracies

FOLDER = os.environ.get("CARME_DATA")
# Mean errors that the documentation promises; a change that makes one worse should be seen.
PROMISED = {
    "GPT steps, 2 to 8 A100": 0.12,
    "GPT steps, 64 A100": 0.20,
    "all-reduce, 2 to 8 A100, NVLink": 0.12,
    "FP32 products, TITAN X": 0.30,
    "FP32 products, M40": 0.30,
    "all-reduce, 2 to 32 M40, PCIe and FDR": 0.10,
    "ResNet-50 epochs, V100": 0.15,
    "ResNet-50 epochs, P100": 0.20,
    "ResNet-50 slow-down by caps, V100": 0.05,
    "ResNet-50 slow-down by caps, P100": 0.05,
    "ResNet-50 GPU power under caps, V100": 0.06,
    "BERT steps, 1 to 16 T4 on 1 to 4 nodes": 0.25,
    "H100 node power in training": 0.08,
    "epochs to target by batch, ShuffleNet": 0.12,
    "slowest of 10 workers, jobs 1 to 3": 0.05,
}


@pytest.fixture(scope="module")
def errors():
    if not FOLDER:
        pytest.skip("CARME_DATA does not name the folder of measurements")
    return {a.what: a for a in accuracies(Path(FOLDER))}


@pytest.mark.data
@pytest.mark.parametrize("comparison", PROMISED)
def test_errors_are_as_documented(errors, comparison):
    assert errors[comparison].mean_error <= PROMISED[comparison]


@pytest.mark.data
def test_all_comparisons_are_promised(errors):
    assert errors.keys() == PROMISED.keys()


def test_without_measurements_it_says_where_they_were_looked_for(tmp_path):
    with pytest.raises(MissingError, match="nothing"):
        accuracies(tmp_path / "nothing")
    result = CliRunner().invoke(validate, ["--data", str(tmp_path)])
    assert isinstance(result.exception, MissingError)


def test_without_a_folder_it_says_in_one_line_what_to_give(tmp_path, monkeypatch):
    """Also where a folder of that name lies beside the working folder."""
    (tmp_path / "shared" / "data").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("CARME_DATA", raising=False)
    error = CliRunner().invoke(validate, []).exception
    assert isinstance(error, InputError)
    assert str(error) == "name the folder of measurements with --data or CARME_DATA"


def test_the_variable_names_the_folder(tmp_path):
    error = CliRunner().invoke(validate, [], env={"CARME_DATA": str(tmp_path)}).exception
    assert isinstance(error, MissingError)
    assert str(tmp_path) in str(error)
