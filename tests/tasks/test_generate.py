"""Text from modules of one's own: what they return, what they drop, and how many places they know."""

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedcom import ConfigError, Tokens, generate
from tests.cli.test_cli import Command, command

__all__ = ["command"]  # a fixture


class Wordy(nn.Module):
    """Scores of characters that drops, returns what it is told to, and knows eight places."""

    def __init__(self, classes: int, returns: str = "mapping") -> None:
        super().__init__()
        self.returns, self.places = returns, nn.Embedding(8, 16)
        self.first, self.drop, self.last = nn.Embedding(classes, 16), nn.Dropout(0.5), nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Any:
        place = self.places(torch.arange(x.shape[1], device=x.device))
        scores = self.last(self.drop(self.first(x) + place))
        return {"mapping": {"logits": scores}, "tuple": (scores, None), "tensor": scores}[self.returns]


@pytest.mark.parametrize("returns", ["mapping", "tuple", "tensor"])
def test_a_text_goes_on_as_after_eval_whatever_the_module_returns(returns: str) -> None:
    letters, module = Tokens("abcdef "), Wordy(9, returns)
    texts = {generate(module, letters, "bad cafe", 20, context=8) for _ in range(4)}
    assert len(texts) == 1
    assert module.training
    assert module.drop.training
    module.drop.eval()
    generate(module, letters, "bad", 3)
    assert module.training
    assert not module.drop.training
    module.context = nn.Linear(1, 1)  # whatever a module calls so
    with pytest.raises(ConfigError, match="or takes fewer than 9 tokens"):
        generate(module, letters, "bad cafe", 20)


def test_models_of_few_places_go_on_beyond_them(tmp_path: Path, command: Command) -> None:
    (tmp_path / "texts").mkdir()
    for name in ("anna", "bert"):
        (tmp_path / "texts" / f"{name}.txt").write_text("to be or not to be\n" * 8)
    imports = "from typing import Any\n\nimport torch\nfrom torch import Tensor, nn\n\n\n"
    (tmp_path / "wordy.py").write_text(imports + inspect.getsource(Wordy))
    settings = ["data.name=text", "data.path=texts", "data.length=8", "run.rounds=1", "--quiet"]
    settings += ["algorithm.name=fedavg", "algorithm.eta=0.1", "algorithm.gamma=1", "algorithm.tau=1"]
    learned = ["model.width=8", "model.heads=2", "model.layers=1", "model.positions=learned"]
    for out, model in (("own", ["model.name=wordy:Wordy"]), ("there", ["model.name=transformer", *learned])):
        done = command("run", *settings, *model, "--device", "cpu", "--out", out)
        assert done.code == 0, done.err
        assert (tmp_path / out / "samples.json").is_file()
        texts = [command("generate", out, "--prompt", "to be or not", "--tokens", "30") for _ in range(2)]
        assert texts[0].code == 0, texts[0].err
        assert texts[0].out == texts[1].out
