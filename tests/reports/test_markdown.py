"""Tables in Markdown, compared with tables written by hand."""

import pytest

from fedcom.reports.markdown import markdown_table


def test_a_table_by_hand() -> None:
    text = markdown_table(["name", "bits"], [["int", "8"], ["a|b", "2"]], "lr")
    assert text == "| name | bits |\n| :-- | --: |\n| int | 8 |\n| a\\|b | 2 |"


def test_headings_alignments_and_rows_must_be_of_one_length() -> None:
    for headings, rows, align in ((["a"], [["1", "2"]], "l"), (["a", "b"], [["1", "2"]], "l")):
        with pytest.raises(ValueError, match="of another length"):
            markdown_table(headings, rows, align)
