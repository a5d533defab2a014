"""What mkdocs does besides: a reference of every public name, notebooks, verdicts, a gallery, formulas."""

import ast
import base64
import html
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

DOCS = Path(__file__).parent
VERDICTS = DOCS.parent / "experiments" / "VERDICTS.md"
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
    made: dict[str, str | bytes] = {"reference.md": reference(), "gallery.md": gallery()}
    made["verdicts.md"] = VERDICTS.read_text(encoding="utf-8")
    for path in sorted(DOCS.glob("tutorials/*.ipynb")):
        made |= notebook(path)
    for place, content in made.items():
        files.append(File.generated(config, place, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn links to notebooks and verdicts to their pages, pictures to both schemes, and set formulas.

    Links that leave docs/ go to the repository, or become text.
    """
    depth = page.file.src_uri.count("/")
    markdown = markdown.replace(".ipynb)", ".md)")
    markdown = markdown.replace(
        f"]({'../' * (depth + 1)}experiments/VERDICTS.md)", f"]({'../' * depth}verdicts.md)"
    )
    markdown = re.sub(r"<picture>.*?</picture>", _both_schemes, markdown, flags=re.DOTALL)
    if page.file.src_uri == "cli.md":
        markdown = re.sub(r"^```text$", "```{ .text .help }", markdown, flags=re.MULTILINE)
    outside = re.compile(rf"\[([^\]]+)\]\(((?:\.\./){{{depth + 1}}})([^)\s]+)\)")
    if config.repo_url:
        markdown = outside.sub(rf"[\1]({config.repo_url.rstrip('/')}/blob/main/\3)", markdown)
    return _formulas(outside.sub(r"\1 (`\3`)", markdown))


def on_page_content(content: str, page: Any, config: Any, files: Files) -> str:
    """Each figure leads to itself at its whole size, as on a phone its words are small."""
    alone = re.compile(r'<p>(<img [^>]*?src="([^"]+\.png)"[^>]*>)</p>')
    return alone.sub(r'<p><a class="whole" href="\2">\1</a></p>', content)


def _both_schemes(found: re.Match[str]) -> str:
    """The headline figure as four images, of which the style sheet shows the one that suits."""
    (words,) = re.findall(r'alt="([^"]*)"', found[0])
    kinds = [(form, scheme) for form in ("", "-narrow") for scheme in ("light", "dark")]
    return "\n".join(
        f"![{words}](figures/headline{form}-{scheme}.png){{ .headline .{scheme} .{form[1:] or 'wide'} }}"
        for form, scheme in kinds
    )


def _formulas(markdown: str) -> str:
    """Set what stands between dollars outside code, by matplotlib's mathtext, as SVG in the page."""
    pieces = re.split(r"(```.*?```|`[^`\n]*`)", markdown, flags=re.DOTALL)
    for i in range(0, len(pieces), 2):
        pieces[i] = re.sub(r"\$\$(.+?)\$\$", lambda m: _formula(m[1], "shown"), pieces[i], flags=re.DOTALL)
        pieces[i] = re.sub(r"\$([^$\n]+?)\$", lambda m: _formula(m[1], "within"), pieces[i])
    return "".join(pieces)


@cache
def _formula(tex: str, kind: str) -> str:
    """A formula as SVG in the text's colour; its source is its label."""
    from matplotlib import rc_context
    from matplotlib.font_manager import FontProperties
    from matplotlib.mathtext import MathTextParser
    from matplotlib.textpath import TextPath

    size, words = 12.0, f"${tex.strip()}$"
    with rc_context({"mathtext.fontset": "stix"}):
        font = FontProperties(size=size)
        width, height, depth, *_ = MathTextParser("path").parse(words, 72, font)
        outline = TextPath((0, 0), words, prop=font)
    letters = {1: "M", 2: "L", 3: "Q", 4: "C", 79: "Z"}
    path = "".join(
        letters[int(code)] + ("" if code == 79 else " ".join(f"{x:.2f}" for x in points))
        for points, code in outline.iter_segments(simplify=False, curves=True)
    )
    box = f"0 {-height + depth:.2f} {width:.2f} {height:.2f}"
    style = f"width:{width / size:.3f}em;height:{height / size:.3f}em;vertical-align:{-depth / size:.3f}em"
    label = html.escape(tex.strip())
    return (
        f'<svg class="formula {kind}" role="math" aria-label="{label}" viewBox="{box}" style="{style}">'
        f'<path transform="scale(1,-1)" d="{path}"/></svg>'
    )


def studies() -> dict[str, tuple[str, str]]:
    """The title of each study on the verdicts' board and its marks there, by its name."""
    board = VERDICTS.read_text(encoding="utf-8")
    found = re.findall(r"^\| \[([\w-]+)\]\(#.*?\) \| (\S+) \|", board, re.MULTILINE)
    pages = {name: (DOCS / "results" / name / "README.md", marks) for name, marks in found}
    return {
        name: (page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# "), marks)
        for name, (page, marks) in pages.items()
        if page.is_file()
    }


def on_config(config: Any) -> Any:
    """Put every study into the navigation, at the end of the results."""
    (results,) = (part["Results"] for part in config.nav if "Results" in part and isinstance(part, dict))
    results += [{title.split(":")[0]: f"results/{name}/README.md"} for name, (title, _) in studies().items()]
    return config


def gallery() -> str:
    """Every study that has a figure as its thumbnail, with its title and marks."""
    cards = []
    for name, (title, marks) in studies().items():
        page = f"results/{name}/README.md"
        for image in sorted((DOCS / "results" / name).glob("*.png"), key=lambda path: len(path.name))[:1]:
            picture = f"![{title}](results/{name}/{image.name}){{ loading=lazy }}"
            cards.append(f"-   [{picture}]({page})\n\n    [{title}]({page}) {marks}")
    lead = "# Gallery\n\nEvery study by its figure; ✅ holds, 🟡 holds in part, ❌ does not hold here."
    return f'{lead}\n\n<div class="grid cards gallery" markdown>\n\n' + "\n\n".join(cards) + "\n\n</div>\n"


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


def notebook(path: Path) -> dict[str, str | bytes]:
    """A notebook's cells and what they put out as one page, and its images as files beside it."""
    pieces, images = [], dict[str, str | bytes]()
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            pieces.append(text)
            continue
        pieces.append(f"```python\n{text}\n```")
        said = "".join("".join(output.get("text", "")) for output in cell["outputs"])
        shown = [{"text/plain": said}] if said else []
        for data in shown + [output["data"] for output in cell["outputs"] if "data" in output]:
            if "image/png" in data:
                name = f"{path.stem}-{len(images) + 1}.png"
                images[f"tutorials/{name}"] = base64.b64decode("".join(data["image/png"]))
                pieces.append(f"![plot]({name}){{ .output }}")
            else:
                pieces.append(_output({kind: "".join(value) for kind, value in data.items()}))
    page = "\n\n".join([pieces[0], f"[The notebook]({path.name}) to run yourself.", *pieces[1:], ""])
    return {f"tutorials/{path.stem}.md": page, **images}


def _output(data: dict[str, str]) -> str:
    """A table or text that a cell has put out."""
    if "text/html" in data:
        lines = [line.strip() for line in data["text/html"].splitlines()]
        whole = re.sub(r"<style.*?</style>", "", " ".join(line for line in lines if line))
        return f'<div class="output">{whole}</div>'
    return f"```{{ .text .output }}\n{data['text/plain'].rstrip()}\n```"
