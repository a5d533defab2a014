"""Write docs/cli.md from the commands' own --help."""

import os
from pathlib import Path

os.environ |= {"NO_COLOR": "1", "TERMINAL_WIDTH": "100", "COLUMNS": "100"}

from typer.main import get_command
from typer.testing import CliRunner

from fedcom.cli import app

PAGE = Path(__file__).parent / "cli.md"


def reference() -> str:
    """The page: one section a command."""
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
| 2 | usage or configuration: the message names the value and the rule |
| 3 | the model diverged; what was measured until then is kept |
| 4 | data: a file is missing, truncated or not what its checksum says |
| 130 | interrupted; what was measured until then is kept |
"""

if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
