"""The progress of a run: on a terminal, in a log, and with --quiet."""

import io
import re
from typing import Any

import pytest
from rich.console import Console

from fedcom.runs import display
from fedcom.runs.display import progress


def row(round: int, accuracy: float | None = 0.5) -> dict[str, Any]:
    return {
        "round": round,
        "train_loss": 2.5 / (round + 1),
        "test_accuracy": accuracy,
        "uplink_bytes": round * 5e4,
    }


def plain() -> Console:
    return Console(file=io.StringIO(), width=40, _environ={})


def lines(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_plain_lines_say_what_was_measured() -> None:
    console = plain()
    with progress(20, "fedavg [q8]", console=console) as shown:
        shown.update(row(0))
        shown.advance(1)
        shown.update(row(20, accuracy=0.9125))
    first, last = lines(console)  # not wrapped, though the console is narrow
    clock = r"elapsed \d+:\d\d"
    assert re.fullmatch(rf"fedavg \[q8\]  round 0/20  loss 2\.500  acc 50\.00%  up 0 B  {clock}", first)
    assert re.fullmatch(rf"fedavg \[q8\]  round 20/20  loss 0\.1190  acc 91\.25%  up 1\.00 MB  {clock}", last)


def test_accuracy_is_not_shown_where_there_is_none() -> None:
    console = plain()
    with progress(20, "fedavg", console=console) as shown:
        shown.update(row(0, accuracy=None))
    assert "acc" not in lines(console)[0]


@pytest.mark.parametrize(("total", "every"), [(1000, 1), (1000, 7), (40, 3), (3, 1), (1, 1)])
def test_plain_lines_are_few_and_hold_the_first_and_the_last(total: int, every: int) -> None:
    console = plain()
    rounds = [*range(0, total, every), total]
    with progress(total, "fedavg", console=console) as shown:
        for k in rounds:
            shown.update(row(k))
    written = lines(console)
    assert min(len(rounds), 10) <= len(written) <= 23
    assert f"round 0/{total} " in written[0]
    assert f"round {total}/{total} " in written[-1]
    assert len(set(written)) == len(written)


def test_an_interrupted_run_still_prints_its_last_row() -> None:
    console = plain()

    def run() -> None:
        with progress(1000, "fedavg", console=console) as shown:
            for k in range(3):
                shown.update(row(k))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    assert ["round 0/1000" in lines(console)[0], "round 2/1000" in lines(console)[1]] == [True, True]
    assert re.search(r"  left \d+:\d\d$", lines(console)[1])


def test_quiet_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    console = plain()
    for given in (console, None):
        with progress(10, "fedavg", quiet=True, console=given) as shown:
            shown.update(row(0))
            shown.advance(1)
    assert lines(console) == []
    assert capfd.readouterr() == ("", "")


def test_progress_goes_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    with progress(10, "fedavg") as shown:
        shown.update(row(0))
    out, err = capfd.readouterr()
    assert out == ""
    assert "fedavg" in err


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_gets_one_live_line_and_its_cursor_back(width: int) -> None:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=True, color_system=None, _environ={})

    def run() -> None:
        with progress(1000, "fedcomgate", console=console) as shown:
            shown.update(row(0))
            shown.advance(499)
            shown.update(row(500))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    written = file.getvalue()
    assert "500/1000 loss 0.004990  acc 50.00%  up 25.0 MB" in written
    assert "…" not in written
    assert written.rstrip().endswith("\x1b[?25h")
    assert "━" in written


def test_a_dumb_terminal_gets_plain_lines() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})
    with progress(10, "fedavg", console=console) as shown:
        shown.update(row(0))
    assert "round 0/10 " in lines(console)[0]


def test_plain_lines_come_even_if_nothing_is_measured() -> None:
    """A sweep measures the last rounds only, and the tables of the paper nothing at all."""
    console = plain()
    with progress(100, "sweep", console=console) as shown:
        for round in range(1, 101):
            shown.advance(round)
        shown.update(row(100))
    found = [line.split("  ")[1] for line in lines(console)]
    assert found == [f"round {round}/100" for round in range(6, 100, 5)] + ["round 100/100"]


def test_plain_lines_are_not_doubled_where_rows_come() -> None:
    console = plain()
    with progress(100, "run", console=console) as shown:
        shown.update(row(0))
        for round in range(1, 101):
            shown.advance(round)
            shown.update(row(round))
    assert [line.split("  ")[1] for line in lines(console)] == [f"round {r}/100" for r in range(0, 101, 5)]


def test_the_pace_is_in_tokens_and_begins_with_the_first_round_that_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter([0.0, 5.0, 5.0, 9.0, 13.0, 13.0, 14.0, 15.0])
    monkeypatch.setattr(display.time, "monotonic", lambda: next(clock))
    pace = display.Pace(400)
    assert pace.words(10) == []  # a run that goes on
    assert pace.words(20) == ["1000 tokens/s"]
    assert pace.words(30) == ["1000 tokens/s"]
    assert display.Pace().words(3) == []  # no text
