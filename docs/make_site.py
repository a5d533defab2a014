"""What mkdocs does besides: a reference of every public name, notebooks as pages, links that leave docs/."""

import ast
import json
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

DOCS = Path(__file__).parent
STUB = DOCS.parent / "src" / "fedcom" / "__init__.pyi"
TITLES = {  # the parts of the reference, by the room of the code that names come from
    "studies": "Comparing, sweeping, reporting",
    "tasks": "Tasks and models",
    "data": "Data",
    "engines": "Simulations",
    "runs": "Runs and tracking",
    "algorithms": "Methods",
    "codecs": "Codecs",
    "traffic": "Links and networks",
}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made here."""
    files.append(File.generated(config, "reference.md", content=reference()))
    for path in sorted(DOCS.glob("tutorials/*.ipynb")):
        place = path.relative_to(DOCS).with_suffix(".md").as_posix()
        files.append(File.generated(config, place, content=notebook(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn links to notebooks to their pages; those that leave docs/ go to the repository, or become text."""
    markdown = markdown.replace(".ipynb)", ".md)")
    depth = page.file.src_uri.count("/")
    outside = re.compile(rf"\[([^\]]+)\]\(((?:\.\./){{{depth + 1}}})([^)\s]+)\)")
    if config.repo_url:
        return outside.sub(rf"[\1]({config.repo_url.rstrip('/')}/blob/main/\3)", markdown)
    return outside.sub(r"\1 (`\3`)", markdown)


def reference() -> str:
    """The page of every public name, part by part, from the docstrings."""
    parts: dict[str, list[str]] = {title: [] for title in [*TITLES.values(), "Everything else"]}
    for node in ast.parse(STUB.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module != "fedcom.version":
            title = TITLES.get(node.module.split(".")[1], "Everything else")
            parts[title] += [f"::: {node.module}.{alias.name}" for alias in node.names]
    sections = [f"## {title}\n\n" + "\n\n".join(names) for title, names in parts.items() if names]
    lead = "# Python\n\nEvery name that `import fedcom` gives, from its docstring."
    return "\n\n".join([lead, *sections, ""])


def notebook(path: Path) -> str:
    """A notebook's cells as one page."""
    pieces = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        pieces.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    name = path.name
    return "\n\n".join([pieces[0], f"[The notebook]({name}) to run yourself.", *pieces[1:], ""])
