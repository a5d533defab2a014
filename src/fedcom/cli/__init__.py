"""The command line: fedcom run, compare, sweep, status, report, reproduce and the rest."""

import os
import sys
import warnings
from importlib import import_module

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
    warnings.showwarning = lambda message, *_: streams.complain(message)
    with by_flags(), streams.watched() as output:
        try:
            with stops.listening():
                _run_app(output)
        finally:
            if ranks := sys.modules.get("fedcom.engines.ranks.ranks"):
                ranks.leave()
            streams.end()


def _run_app(output: streams.Watched) -> None:
    """Run the command; typer handles usage errors, Ctrl-C and its own exit codes."""
    try:
        try:
            logs.set_up()
            app(prog_name="fedcom")
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
        sys.exit(told_code(error))
