"""Run the tutorials and keep what they put out: python docs/make_tutorials.py; a minute or two."""

import re
import tempfile
from pathlib import Path
from typing import Any

TUTORIALS = Path(__file__).parent / "tutorials"


def run(path: Path) -> None:
    """Run a notebook in an empty folder and write it with its outputs, without those of a progress bar."""
    import nbclient
    import nbformat

    book = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        where = {"metadata": {"path": folder}}
        nbclient.NotebookClient(book, timeout=900, kernel_name="python3", resources=where).execute()
    for cell in (cell for cell in book.cells if cell.cell_type == "code"):
        cell.outputs = [output for output in cell.outputs if _kept(output)]
        cell.metadata = {}  # times differ from run to run
    book.metadata = {key: book.metadata[key] for key in ("kernelspec",) if key in book.metadata}
    text = re.sub(r"/tmp/fedcom-\w+", "/tmp/fedcom-runs", nbformat.writes(book))  # a name by chance
    path.write_text(text + "\n", encoding="utf-8")


def _kept(output: Any) -> bool:
    shown = output.get("data", {}).get("text/html", "")
    return output.get("name") != "stderr" and "<progress" not in shown


if __name__ == "__main__":
    for tutorial in sorted(TUTORIALS.glob("*.ipynb")):
        run(tutorial)
