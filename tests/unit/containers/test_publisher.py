"""The index: what is whole is offered, what is not is named, changes are all or nothing."""

import json
import os
import socket
import time
from pathlib import Path

import pytest

from carme.errors import InputError, MissingError, UnavailableError
from carme.images.catalogue import INDEX_NAME, file_stamp, load_catalogue
from carme_containers.publisher import Publisher
from support.images import make_image


@pytest.fixture
def built(tmp_path: Path) -> Path:
    folder = tmp_path / "built"
    folder.mkdir()
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "images"


@pytest.fixture
def publisher(folder: Path) -> Publisher:
    return Publisher(folder)


def publish(publisher: Publisher, built: Path, *names: str, **values: object) -> list[str]:
    for name in names:
        image = make_image(built, *name.split(":"), **values)
        publisher.publish(built / image.file, image)
    return [image.id for image in load_catalogue(publisher.folder).offered()]


def test_nothing_published_yet(folder: Path) -> None:
    catalogue = load_catalogue(folder)
    assert catalogue.offered() == []
    assert catalogue.problems == (f"no image is published in {folder}",)
    with pytest.raises(InputError, match="none is published"):
        catalogue.find("base")


def test_versions_side_by_side_with_a_default(publisher: Publisher, built: Path) -> None:
    assert publish(publisher, built, "base:1.9", "base:1.10", "app:2") == [
        "app:2",
        "base:1.10",
        "base:1.9",
    ]
    catalogue = publisher.catalogue()
    assert catalogue.find("base").version == "1.10"
    assert catalogue.find("base:1.9").version == "1.9"
    publisher.make_default(catalogue.find("base:1.9"))
    assert publisher.catalogue().find("base").version == "1.9"
    with pytest.raises(InputError, match=r"offered: app:2, base:1\.10, base:1\.9"):
        catalogue.find("base:7")


def test_publishing_again_changes_nothing(publisher: Publisher, built: Path, folder: Path) -> None:
    image = make_image(built, "base", "1")
    publisher.publish(built / image.file, image)
    before = (folder / INDEX_NAME).stat()
    publisher.publish(built / image.file, image)
    assert (folder / INDEX_NAME).stat().st_mtime_ns == before.st_mtime_ns


def test_same_version_of_another_recipe_retires_the_old(publisher: Publisher, built: Path) -> None:
    publish(publisher, built, "base:1")
    publish(publisher, built, "base:1", recipe_hash="def", content=b"new")
    catalogue = publisher.catalogue()
    assert [i.recipe_hash for i in catalogue.offered()] == ["def"]
    assert [i.recipe_hash for i in catalogue.index.images if i.state == "retired"] == ["abc"]
    assert (publisher.folder / "base-1-abc.sif").exists()


def test_truncated_file_is_not_offered(publisher: Publisher, built: Path, folder: Path) -> None:
    publish(publisher, built, "base:1", "app:1")
    os.truncate(folder / "base-1-abc.sif", 5000)
    catalogue = load_catalogue(folder)
    assert [image.id for image in catalogue.offered()] == ["app:1"]
    assert "base:1 is not offered: base-1-abc.sif is incomplete" in catalogue.problems[0]


def test_changed_file_is_not_offered(publisher: Publisher, built: Path, folder: Path) -> None:
    publish(publisher, built, "base:1")
    path = folder / "base-1-abc.sif"
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(6000)
        file.write(b"changed")
    # Setting the time back does not help: the change time tells.
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    catalogue = load_catalogue(folder)
    assert catalogue.offered() == []
    assert "checksum" in catalogue.problems[0]


def test_touched_but_unchanged_file_is_offered(
    publisher: Publisher, built: Path, folder: Path
) -> None:
    publish(publisher, built, "base:1")
    os.utime(folder / "base-1-abc.sif")
    assert load_catalogue(folder).problems == ()


def test_missing_file_is_not_offered(publisher: Publisher, built: Path, folder: Path) -> None:
    publish(publisher, built, "base:1")
    (folder / "base-1-abc.sif").unlink()
    assert "missing" in load_catalogue(folder).problems[0]


def test_publishing_repairs_a_broken_file(publisher: Publisher, built: Path, folder: Path) -> None:
    image = make_image(built, "base", "1")
    publisher.publish(built / image.file, image)
    (folder / image.file).unlink()
    (folder / image.file).write_bytes(b"junk")
    publisher.publish(built / image.file, image)
    assert load_catalogue(folder).problems == ()


def test_file_that_is_not_what_was_built(publisher: Publisher, built: Path, folder: Path) -> None:
    publish(publisher, built, "base:1")
    image = make_image(built, "base", "2")
    (built / image.file).write_bytes(b"x" * image.size_bytes)
    with pytest.raises(UnavailableError, match="checksum differs"):
        publisher.publish(built / image.file, image)
    assert [i.id for i in load_catalogue(folder).offered()] == ["base:1"]
    assert not list(folder.glob(".*.sif.*"))


def test_retire_and_prune(publisher: Publisher, built: Path, folder: Path) -> None:
    publish(publisher, built, "base:1", "base:2")
    publisher.retire("base:2")
    assert publisher.catalogue().find("base").version == "1"
    assert (folder / "base-2-abc.sif").exists()
    assert publisher.prune(frozenset({"base-2-abc.sif"})) == []
    assert (folder / "base-2-abc.sif").exists()
    assert [image.id for image in publisher.prune(frozenset())] == ["base:2"]
    assert not (folder / "base-2-abc.sif").exists()
    with pytest.raises(InputError, match="published: base:1"):
        publisher.retire("base:2")


def test_prune_keeps_drafts_that_are_worked_on(
    publisher: Publisher, built: Path, folder: Path
) -> None:
    image = make_image(built)
    gone, host = 2**22 + 1, socket.gethostname()  # Linux numbers processes up to 2**22
    with publisher.draft(built / image.file, image) as draft:
        left = [folder / f".{image.file}.draft.{gone}@{host}", folder / f".{image.file}.{gone}"]
        elsewhere = folder / f".{image.file}.draft.{gone}@other"
        for path in (*left, elsewhere):
            path.touch()
        publisher.prune(frozenset())
        assert set(folder.glob(".*.sif.*")) == {draft, elsewhere}
        for path in (draft, elsewhere):
            os.utime(path, (time.time() - 90_000,) * 2)
        publisher.prune(frozenset())
        assert not list(folder.glob(".*.sif.*")), "a day is too long"


def test_publishing_brings_a_retired_one_back(publisher: Publisher, built: Path) -> None:
    image = make_image(built, "base", "1")
    publisher.publish(built / image.file, image)
    publisher.retire("base")
    assert publisher.catalogue().offered() == []
    publisher.publish(built / image.file, image)
    assert publisher.catalogue().find("base").id == "base:1"


def test_what_verify_finds_leaves_the_rest_of_the_entry(publisher: Publisher, built: Path) -> None:
    image = make_image(built, "base", "1")
    publisher.publish(built / image.file, image)
    changes = {"verified": image.verified.model_copy(update={"output": "fine"})}
    publisher.retire("base")
    assert publisher.update(image, changes)
    [entry] = publisher.catalogue().index.images
    assert (entry.state, entry.verified.output) == ("retired", "fine")

    (built / image.file).unlink()  # one file with the published copy
    rebuilt = make_image(built, "base", "1", content=b"rebuilt")
    publisher.publish(built / rebuilt.file, rebuilt)
    assert not publisher.update(image, changes), "it was another file that was verified"
    [entry] = publisher.catalogue().index.images
    assert (entry.digest, entry.verified.output) == (rebuilt.digest, "")
    assert publisher.catalogue().problems == ()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 2}', '{"images": [{"name": "../x"}]}'])
def test_broken_index_is_one_clear_line(folder: Path, text: str) -> None:
    folder.mkdir()
    (folder / INDEX_NAME).write_text(text)
    with pytest.raises(MissingError, match="is not an index of images"):
        load_catalogue(folder)


def test_index_of_a_newer_carme(publisher: Publisher, built: Path, folder: Path) -> None:
    publish(publisher, built, "base:1")
    data = json.loads((folder / INDEX_NAME).read_text())
    data["images"][0]["mood"] = "sunny"
    data["extra"] = 1
    (folder / INDEX_NAME).write_text(json.dumps(data))
    assert [image.id for image in load_catalogue(folder).offered()] == ["base:1"]


@pytest.mark.parametrize("file", ["../x.sif", "/etc/x.sif", "a/b.sif", ".x.sif", "x", "a\n.sif"])
def test_an_index_cannot_name_a_file_elsewhere(
    publisher: Publisher, built: Path, folder: Path, file: str
) -> None:
    publish(publisher, built, "base:1")
    data = json.loads((folder / INDEX_NAME).read_text())
    data["images"][0]["file"] = file
    (folder / INDEX_NAME).write_text(json.dumps(data))
    with pytest.raises(MissingError, match=r"images\.0\.file"):
        load_catalogue(folder)


def test_unsigned_images_where_signatures_are_demanded(
    publisher: Publisher, built: Path, folder: Path
) -> None:
    publish(publisher, built, "base:1")
    publish(publisher, built, "app:1", signed_by="sha256:0123")
    catalogue = load_catalogue(folder, require_signed=True)
    assert [image.id for image in catalogue.offered()] == ["app:1"]
    assert catalogue.problems == (
        "base:1 is not offered: it is not signed, and this site requires it",
    )


def test_stamp_is_renewed_after_a_change_of_links(
    publisher: Publisher, built: Path, folder: Path
) -> None:
    publish(publisher, built, "base:1")
    (built / "base-1-abc.sif").unlink()
    image = make_image(built, "base", "1")
    publisher.publish(built / image.file, image)
    [entry] = publisher.catalogue().index.images
    assert entry.stamp == file_stamp(folder / entry.file)
