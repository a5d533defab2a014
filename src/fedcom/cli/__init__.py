"""The command line: fedcom run, compare, sweep, status, report, reproduce and the rest."""

import os
import sys
import warnings
from functools import cache
from importlib import import_module
from typing import Any

from fedcom.cli import streams
from fedcom.cli.app import app, told_code
from fedcom.errors import Stopped, by_flags
from fedcom.runs import logs, stops

__all__ = ["app", "main"]

for _commands in ("runs", "results", "choices", "flower", "advice"):  # in the order of the help
    import_module(f"fedcom.cli.{_commands}")


def main() -> None:
    """The entry point: an error the user can fix is printed as one line; any other also writes a file."""
    streams.open_all()
    tell_once = cache(streams.complain)  # the runs of a comparison may all have the same to say
    warnings.showwarning = lambda message, *_: tell_once(str(message))
    with by_flags(), streams.watched() as output:
        try:
            with stops.listening():
                _run_app(output)
        finally:
            if ranks := sys.modules.get("fedcom.engines.ranks.ranks"):
                ranks.leave()
            streams.end()


def _run_app(output: streams.Watched) -> None:
    """Run the command; what was typed wrong is told in one line, as every error is."""
    try:
        try:
            logs.set_up()
            code = app(prog_name="fedcom", standalone_mode=False)
            sys.exit(code if isinstance(code, int) else 0)
        except SystemExit as ended:
            if not ended.code:
                output.flush()  # else nobody would hear that it could not be written
            raise
    except Stopped as stopped:
        if not output.gone:
            streams.complain(f"stopped by {stops.name(stopped.signal)}{stopped.remedy}")
        if not stopped.between_rounds:  # threads may still be busy with the round: do not wait for them
            streams.end()
            os._exit(stopped.exit_code)
        sys.exit(stopped.exit_code)
    except Exception as error:
        sys.exit(_usage_code(error) or told_code(error))


def _usage_code(error: Any) -> int | None:
    """Say what was typed wrong, as typer found it; returns the exit code, None if that is not what it is."""
    if type(error).__name__ == "NoArgsIsHelpError":  # the help has been printed
        return int(error.exit_code)
    if not hasattr(error, "format_message"):
        return None
    words = error.format_message().strip().removesuffix(".").replace(". Did you mean", "; did you mean")
    words = " ".join(words.replace("'\n", "' ").split())
    where = getattr(error, "ctx", None)
    see = "" if words.endswith("?") else f"; see {where.command_path if where else 'fedcom'} -h"
    streams.complain(f"{words[:1].lower()}{words[1:]}{see}")
    return int(error.exit_code)
