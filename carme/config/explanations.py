"""What the settings mean, from the docstrings that stand below them in the code."""

import ast
import inspect
import textwrap


def explanations(model: type) -> dict[str, str]:
    """Field name to explanation, on one line; fields without one are left out."""
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    if not isinstance(definition, ast.ClassDef):
        return {}
    found = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            found[field.target.id] = " ".join(below.value.value.split())
    return found
