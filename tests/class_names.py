"""Checks that no two classes which other modules import have the same name.

Run by `./dev lint`. A class counts as imported if another module names it in `from … import` (also
through a package that passes it on) or as `module.Class`.
"""

import ast
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("carme", "spawner/carme_spawner", "monitoring/carme_monitoring",
            "containers/carme_containers")  # fmt: skip


def sources(root: Path = ROOT) -> dict[str, ast.Module]:
    """Every module of the four packages, by its dotted name."""
    modules = {}
    for package in PACKAGES:
        top = root / package
        for path in sorted(top.rglob("*.py")):
            parts = path.relative_to(top.parent).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            modules[name] = ast.parse(path.read_text(encoding="utf-8"))
    return modules


def duplicates(modules: dict[str, ast.Module]) -> dict[str, list[str]]:
    """The modules that define an imported class of the same name, by that name."""
    classes = {
        name: {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
        for name, tree in modules.items()
    }
    imports = {name: _imported_names(tree) for name, tree in modules.items()}

    def definer(module: str, name: str) -> str | None:
        """The module that defines the class which `module` calls `name`."""
        seen = set()
        while name not in classes.get(module, ()):
            if (module, name) in seen or name not in imports.get(module, {}):
                return None
            seen.add((module, name))
            module, name = imports[module][name]
        return module

    shared: dict[str, set[str]] = defaultdict(set)
    for importer, tree in modules.items():
        uses = list(imports[importer].values())
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                package, name = imports[importer].get(node.value.id, ("", ""))
                uses.append((f"{package}.{name}", node.attr))
        for module, name in uses:
            owner = definer(module, name)
            if owner and owner != importer:
                shared[name].add(owner)
    return {name: sorted(owners) for name, owners in shared.items() if len(owners) > 1}


def _imported_names(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """What `from module import name as local` brings: {local: (module, name)}."""
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and not node.level
        for alias in node.names
    }


def main() -> int:
    problems = duplicates(sources())
    for name, owners in sorted(problems.items()):
        print(f"class {name} is defined and imported from: {', '.join(owners)}", file=sys.stderr)
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
