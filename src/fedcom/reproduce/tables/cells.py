"""The paper's six tables as tables.toml tells them: their words, the cells to check and the comparisons."""

from typing import Any

from fedcom.reproduce.panels import package_data
from fedcom.reproduce.tables.checks import Case, Check
from fedcom.reproduce.tables.rivals import Rival
from fedcom.theory.rates import rate

_TOLD = package_data("tables/tables.toml")


def _check(
    tables: list[int], factor: str, values: str, local: bool = False, of: str | None = None, **case: Any
) -> Check:
    """A check of what the first of some tables states of a case.

    Args:
        values: the name of the factor's values.
        local: with the local steps that it states, instead of the case's own.
        of: whose rate it is, if not that of the case's method.
    """
    base = Case(**case)
    stated = rate(tables[0], of or base.method.removesuffix(" damped"), base.column)
    tau = stated.tau if local else None
    return Check(tuple(tables), base, factor, tuple(_TOLD["values"][values]), stated.rounds, tau)


INTRODUCTION: str = _TOLD["introduction"]
TABLES = {int(number): words for number, words in _TOLD["tables"].items()}  # title and claim of each
CHECKS = [_check(**told) for told in _TOLD["checks"]]
RIVALS = [Rival(**told) for told in _TOLD["rivals"]]
