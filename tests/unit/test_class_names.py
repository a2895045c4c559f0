"""Shared class names are unique, and the check finds what it is for."""

import ast

from class_names import duplicates, sources


def test_two_imported_classes_of_one_name() -> None:
    modules = {
        "carme.a": ast.parse("class Part: ...\nclass Own: ..."),
        "carme.b": ast.parse("class Part: ..."),
        "carme.c": ast.parse("class Own: ..."),
        "carme.package": ast.parse("from carme.b import Part"),
        "carme.user": ast.parse("from carme.a import Own, Part"),
        "carme.other": ast.parse("from carme import package\npackage.Part"),
    }
    assert duplicates(modules) == {"Part": ["carme.a", "carme.b"]}


def test_no_two_shared_classes_have_one_name() -> None:
    assert duplicates(sources()) == {}
