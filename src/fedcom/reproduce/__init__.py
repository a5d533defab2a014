"""The paper's figures and tables, each as one command with a verdict on its claims. STUDIES lists them."""

from fedcom.reproduce import (
    explorations,
    fig1,
    fig2,
    fig3,
    fig4,
    fig5,
    fig6,
    fig7,
    fig8,
    fig9,
    flamby,
    frontier,
    language,
    niid,
    optimisers,
    outer,
    tracking,
)
from fedcom.reproduce.panels import Panel, Scale
from fedcom.reproduce.results import Verdict
from fedcom.reproduce.runner import reproduce
from fedcom.reproduce.study import Study

_FIGURES = (fig1, fig2, fig3, fig4, fig5, fig6, fig7, fig8, fig9)
_ALL = (
    *(module.STUDY for module in _FIGURES),
    *frontier.STUDIES,
    optimisers.STUDY,
    language.STUDY,
    outer.STUDY,
    *niid.STUDIES,
    flamby.STUDY,
    explorations.STUDY,
    tracking.STUDY,
)
STUDIES: dict[str, Study] = {study.name: study for study in _ALL}

__all__ = ["STUDIES", "Panel", "Scale", "Study", "Verdict", "reproduce"]
