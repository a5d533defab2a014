"""What fedcom logs, as JSON."""

import json
from datetime import datetime, timedelta
from pathlib import Path

from tests.processes import finished, program

CODE = r"""
from fedcom.engines.remote.faults import Faults
from fedcom.runs import logs
from fedcom.traffic.ledger import Ledger
logs.set_up()
logs.set_up()
faults = Faults()
faults.refuse(3, 1, "failed", "the client says: token=abc \x1b[31m\x7f\nred", 10, Ledger(1))
faults.name_long(4, 2, {"D": float("inf")}, {"D": 1.0})
"""


def test_logs_are_one_json_object_per_line_without_secrets_and_control_characters(tmp_path: Path) -> None:
    done = program(tmp_path, CODE, environment={"FEDCOM_LOG": "json"})
    assert done.out == ""
    assert all(c == "\n" or c.isprintable() for c in done.err)
    refused, long = map(json.loads, done.err.splitlines())
    time = datetime.fromisoformat(refused.pop("time"))
    assert time.utcoffset() == timedelta(0)
    detail = r"the client says: token=*** \x1b[31m\x7f\nred"
    assert refused == {
        "level": "warning",
        "message": f"round 3: client 1 is refused: failed ({detail})",
        "round": 3,
        "client": 1,
        "refused": "failed",
        "detail": detail,
        "bytes": 10,
    }
    assert (long["round"], long["client"], long["long"], long["median"]) == (4, 2, {"D": "inf"}, {"D": 1.0})


def test_another_form_of_logs_is_refused(tmp_path: Path) -> None:
    code, _, err = finished(tmp_path, "list", "codecs", environment={"FEDCOM_LOG": "xml"})
    assert code == 2
    assert err == "fedcom: FEDCOM_LOG='xml' in the environment is not json; set it so, or unset it\n"
