"""The tutorials run from top to bottom in a real kernel, and what they show renders."""

import json
from pathlib import Path
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")
pytest.importorskip("pandas")
TUTORIALS = sorted((Path(__file__).parent.parent / "docs" / "tutorials").glob("*.ipynb"))


def outputs(book: Any, mark: str) -> list[dict[str, Any]]:
    """What the cell that ends with some text has put out."""
    (cell,) = (c for c in book.cells if c.cell_type == "code" and c.source.rstrip().endswith(mark))
    return [dict(output.get("data", {})) for output in cell.outputs]


@pytest.fixture(
    scope="module",
    params=[TUTORIALS[0], *(pytest.param(path, marks=pytest.mark.thorough) for path in TUTORIALS[1:])],
    ids=lambda path: path.stem,
)
def book(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    found = nbformat.read(request.param, as_version=4)
    nbformat.validate(found)
    where = {"metadata": {"path": str(tmp_path_factory.mktemp("notebook"))}}
    client = nbclient.NotebookClient(found, timeout=900, kernel_name="python3", resources=where)
    client.execute()
    found.metadata["stem"] = request.param.stem
    return found


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_a_tutorial_runs_from_top_to_bottom(book: Any) -> None:
    codes = [cell for cell in book.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in codes] == list(range(1, len(codes) + 1))
    assert (
        "<strong>task"
        in outputs(book, "task" if book.metadata.stem == "first-steps" else "\ntask")[-1]["text/html"]
    )
    shown = outputs(book, "\nfound")
    assert any("<th>method</th>" in data.get("text/html", "") for data in shown)
    pictures = [
        data for cell in codes for out in cell.outputs if (data := out.get("data", {})).get("image/png")
    ]
    assert pictures
    if book.metadata.stem == "first-steps":
        assert any("<progress" in data.get("text/html", "") for data in shown)
        assert "<strong>simulation" in outputs(book, "\nsimulation")[-1]["text/html"]
        assert "<strong>21 rows" in outputs(book, "simulation.results")[-1]["text/html"]
    elif book.metadata.stem == "your-own":
        assert "<strong>codec thirds" in outputs(book, "Thirds()")[-1]["text/html"]
    elif book.metadata.stem == "three-cities":
        printed = [out.text for cell in codes for out in cell.outputs if "MB received" in out.get("text", "")]
        assert "step 160, outer step 8" in printed[-1]
    elif book.metadata.stem == "language-model":
        assert any("perplexity" in data.get("text/html", "") for data in shown)
        assert len(pictures) == 2
    elif book.metadata.stem == "five-hospitals":
        assert any("worst client %" in data.get("text/html", "") for data in shown)
        assert "Évora" in outputs(book, '"test_accuracy"]]')[-1]["text/html"]


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorials_are_kept_with_what_they_put_out(path: Path) -> None:
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1)), "make tutorials"
    kinds = [kind for cell in cells for output in cell["outputs"] for kind in output.get("data", {})]
    assert kinds.count("image/png") >= 2
    assert not [output for cell in cells for output in cell["outputs"] if output["output_type"] == "error"]
