"""The hook of one process; tests/outer/test_torchrun.py has several."""

import pytest
import torch

from fedcom.outer import Gradients


@pytest.mark.parametrize("codec", ["rotated", "peaks", "dithered", "lowrank"])
def test_a_bucket_of_few_numbers_is_sent_as_it_is(codec: str) -> None:
    """DDP's last bucket may be a bias alone, for which a codec at a low rate has no bits at all."""
    for d, dtype in ((1, torch.float32), (7, torch.bfloat16), (500, torch.float64)):
        g = torch.linspace(1, 2, d, dtype=dtype)
        assert torch.equal(Gradients(codec, 0.1 if codec == "peaks" else 1.0).mean(g, 0), g)
    g = torch.ones(3)
    g[1] = torch.inf
    assert Gradients().mean(g, 0).isnan().all()
