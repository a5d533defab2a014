"""Write docs/cli.md from the commands' own --help."""

import os
from pathlib import Path

os.environ |= {"NO_COLOR": "1", "TERMINAL_WIDTH": "100", "COLUMNS": "100"}

from typer.main import get_command
from typer.testing import CliRunner

from fedcom.cli import app

PAGE = Path(__file__).parent / "cli.md"


def reference() -> str:
    """The page: one section per command."""
    commands = get_command(app).commands  # type: ignore[attr-defined]
    sections = ["# The command line\n\nWritten by `make docs` from the commands' own help.\n"]
    for words in ([], *([name] for name in commands)):
        out = CliRunner().invoke(app, [*words, "--help"], prog_name="fedcom").output
        text = "\n".join(line.rstrip() for line in out.strip().splitlines())
        sections.append(f"## fedcom {' '.join(words)}".rstrip() + f"\n\n```text\n{text}\n```\n")
    sections.append(EXIT_CODES)
    return "\n".join(sections)


EXIT_CODES = """## Exit codes

| code | what happened |
|---|---|
| 0 | all went well |
| 1 | another error, which the message explains |
| 2 | usage or configuration: the message names the value and the rule |
| 3 | the model diverged; what was measured until then is kept |
| 4 | data: a file is missing or truncated, or its checksum is wrong |
| 5 | storage: a disk is full or cannot be written to, or a checkpoint on it is damaged |
| 6 | too little memory, of the machine or of its GPU |
| 7 | another process of the run ended or did not answer; what was measured until then is kept |
| 8 | your own code (a method, codec, model, data function) raised an error; the message names its line |
| 70 | a bug in fedcom: the message names a file with all that is needed to find the bug |
| 129, 130, 143 | stopped by SIGHUP (a terminal closed), SIGINT (Ctrl-C) or SIGTERM; a run can be resumed |
| 141 | the program that reads the output has gone, as with `\| head`; a run can be resumed |

[Going on after an interruption](resume.md) says what is kept. torchrun ends with 1 whenever the code is not
0, and prints the code in a list of its own: [exit codes of ranks](cluster.md#exit-codes-of-ranks).

The file of a bug is called `fedcom-error-TIME.txt`. It is in the folder of the results if there is one, else
in the current folder, else in the system's folder for temporary files. It holds the traceback, the command
and the versions of fedcom, Python, torch and the system. Please report it. With `FEDCOM_DEBUG=1` in the
environment there is no file, and the error is raised with its traceback. The traceback of an error in your
own code is written to a file of that name too, if there is a folder of results.
"""

if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
