"""The paper's figures, each as one command with a verdict: this is the one place that knows them by name."""

from fedcom.reproduce import fig2, fig3
from fedcom.reproduce.results import Verdict
from fedcom.reproduce.runner import reproduce
from fedcom.reproduce.study import Panel, Scale, Study

STUDIES: dict[str, Study] = {s.name: s for s in (fig2.STUDY, fig3.STUDY)}

__all__ = ["STUDIES", "Panel", "Scale", "Study", "Verdict", "reproduce"]
