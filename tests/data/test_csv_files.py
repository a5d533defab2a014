"""Tables as people have them: what is meant is read, and what would mix columns or sites up is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedcom import DataError
from fedcom.data.csv_files import first_unusable, read_csv
from fedcom.data.dataset import Dataset
from fedcom.data.own_files import read_own
from fedcom.draws import Draw

ROWS = [("Cork", 1.0, 5.0, 0), ("Cork", 2.0, 7.0, 1), ("Évora", 4.0, 1.0, 1), ("Évora", 3.0, 2.0, 0)]
PLAIN = "site,age,dose,ill\n" + "".join(f"{s},{a},{b},{y}\n" for s, a, b, y in ROWS)


def read(tmp_path: Path, text: str | bytes, test: Any = None, **given: Any) -> Dataset:
    path = tmp_path / "mine.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_own(path, "ill", "site", test, Draw.seeded(0), **given)


@pytest.mark.parametrize(
    "text",
    [
        PLAIN.replace("\n", "\r\n"),
        PLAIN.replace("\n", "\r"),
        "\ufeff" + PLAIN,
        PLAIN.replace(",", ", ") + "   \n\n",
        PLAIN.replace("Cork,2", '" Cork ",2'),
        PLAIN.replace("\u00c9vora,4", "E\u0301vora,4"),  # the same name, composed otherwise
        PLAIN.replace("site", '"site"').replace("1.0", '"1.0"'),
    ],
)
def test_the_same_table_written_otherwise_is_the_same_data(text: str, tmp_path: Path) -> None:
    want, got = read(tmp_path, PLAIN), read(tmp_path, text)
    assert want.groups is not None
    assert got.groups is not None
    assert got.groups.tolist() == want.groups.tolist() == [0, 0, 1, 1]
    assert torch.equal(got.x, want.x)
    assert torch.equal(got.y, want.y)
    assert got.x.dtype == torch.float32


def test_whole_numbers_of_clients_may_be_written_as_fractions(tmp_path: Path) -> None:
    data = read(tmp_path, PLAIN.replace("Cork", "3.0").replace("Évora", "1.0"))
    assert data.groups is not None
    assert data.groups.tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PLAIN.replace(",", ";").replace(".", ","), "separated by ';'; save it with commas"),
        (PLAIN.replace(",", "\t"), r"separated by '\t'"),
        (PLAIN.replace("dose", "age"), "has 2 columns 'age'; give each a name of its own"),
        (PLAIN.replace("age", "ill"), "has 2 columns 'ill'"),
        (PLAIN.replace("age", ""), "column 2 of mine.csv has no heading; name it, or leave it out"),
        (PLAIN.replace("2.0,7.0", "2.0,nan"), "line 3 of mine.csv holds 'nan' in column 'dose'"),
        (PLAIN.replace("2.0,7.0", "1e300,7.0"), "line 3 of mine.csv holds '1e300' in column 'age'"),
        (PLAIN.replace("7.0,1", "7.0,inf"), "line 3 of mine.csv holds 'inf' in column 'ill'"),
        (PLAIN.replace("7.0,1", "7.0,NA"), "a label of mine.csv is NA, which stands for none"),
        (
            PLAIN.replace("Cork", "0.5").replace("Évora", "2"),
            "'site' of mine.csv holds 0.5; clients are names",
        ),
        (
            PLAIN.replace("Cork", f"{10**19}").replace("Évora", f"{10**19 + 1}"),
            "'site' of mine.csv holds numbers of 9007199254740992 or more, which are not told apart",
        ),
        (PLAIN.encode("latin-1"), "cannot be read as text in UTF-8"),
    ],
)
def test_what_would_be_misread_is_refused(
    text: str | bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as caught:
        read(Path(), text)
    assert message in str(caught.value)


def test_columns_of_a_test_file_are_found_by_name(tmp_path: Path) -> None:
    other = tmp_path / "test.csv"
    other.write_text("dose,ill,age,site\n9,1,6,Cork\n", encoding="utf-8")
    data = read(tmp_path, PLAIN, str(other))
    assert data.test_x.tolist() == [[6.0, 9.0]]
    for heading, message in (
        ("dose,ill,years,site", "mine.csv has the column 'age', and .*test.csv has not"),
        ("dose,ill,age,weight,site", "test.csv has the column 'weight', and .*mine.csv has not"),
    ):
        cells = ",".join("9" for _ in heading.split(",")[1:])
        other.write_text(f"{heading}\n{cells},Cork\n")
        with pytest.raises(DataError, match=message):
            read(tmp_path, PLAIN, str(other))


def test_labels_of_a_test_file_are_of_the_same_kind(tmp_path: Path) -> None:
    other = tmp_path / "test.csv"
    other.write_text("dose,ill,age,site\n9,yes,6,Cork\n")
    with pytest.raises(DataError, match="not of one kind: 0 and yes"):
        read(tmp_path, PLAIN, str(other))


def test_a_test_row_of_an_unknown_site_is_named_where_it_would_be_scaled(tmp_path: Path) -> None:
    other = tmp_path / "test.csv"
    other.write_text("dose,ill,age,site\n9,1,6,Oslo\n")
    with pytest.raises(DataError, match=r"test\.csv has rows of 'Oslo', who has no training row"):
        read(tmp_path, PLAIN, str(other), normalise="client")


def test_large_numbers_are_scaled_before_they_are_rounded(tmp_path: Path) -> None:
    """Dates as seconds differ by less than float32 can tell; a column of one date is 0."""
    rows = "".join(f"a,{1_700_000_000 + i},20200101,{i % 2}\n" for i in range(7))
    x = read(tmp_path, "site,at,born,ill\n" + rows, normalise="client").x
    want = (np.arange(7) - 3) / np.arange(7).std(ddof=1)
    assert x[:, 0].tolist() == pytest.approx(want.tolist())
    assert x[:, 1].tolist() == [0.0] * 7


def test_a_table_may_have_a_test_set_of_arrays(tmp_path: Path) -> None:
    other = tmp_path / "test.npz"
    np.savez(other, x=np.array([[1.5, 6.0]], np.float32), ill=[1], site=["Cork"])
    data = read(tmp_path, PLAIN, str(other), normalise="client")
    assert data.test_x.tolist() == [[0.0, 0.0]]
    assert data.test_x.dtype == data.x.dtype == torch.float32


def test_a_folder_and_a_name_in_capitals(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is a folder; put the rows of all clients into one file"):
        read_own(tmp_path, None, None, None, Draw.seeded(0))
    (tmp_path / "MINE.CSV").write_text(PLAIN, encoding="utf-8")
    assert len(read_own(tmp_path / "MINE.CSV", "ill", "site", None, Draw.seeded(0)).y) == 4


def test_a_column_of_names_is_asked_about_if_no_client_is_known(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(PLAIN, encoding="utf-8")
    with pytest.raises(DataError, match=r"holds 'Cork', but features .* in data\.client_column if it says"):
        read_own(tmp_path / "mine.csv", "ill", None, None, Draw.seeded(0))


def test_text_columns_stay_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,x\n2,y\n")
    columns = read_csv(tmp_path / "a.csv")
    assert columns["a"].dtype == np.int64
    assert columns["b"].tolist() == ["x", "y"]


def test_numbers_of_every_width_are_looked_at() -> None:
    for kind in (np.float16, np.float32, np.float64):
        assert first_unusable(np.array([1.0, 60000.0], kind)) is None
        assert first_unusable(np.array([1.0, np.inf, np.nan], kind)) == 1
    assert first_unusable(np.array([2**62])) is None
