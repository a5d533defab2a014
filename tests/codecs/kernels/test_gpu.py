"""The Triton kernels against the torch lines they stand for: interpreted on a CPU, and compiled on a GPU."""

import os
import subprocess
import sys

import pytest
import torch

from fedcom.codecs import Rotated
from fedcom.codecs.coding import hadamard
from fedcom.codecs.coding.uniform import for_rate
from fedcom.codecs.kernels import gpu
from fedcom.draws import Draw
from fedcom.vectors import Layout

pytest.importorskip("triton", reason="triton comes with torch for CUDA")


def check(clients: int, d: int, device: str) -> None:
    """Codes and vectors are those of the torch path to the last bit; sums to the last few."""
    x = torch.randn(clients, d, generator=torch.Generator().manual_seed(d)).to(device)
    draw = Draw.seeded(1, device).fold(torch.arange(clients))
    b, n = hadamard.block_size(d), hadamard.padded(d)
    quantiser = for_rate(2.0)
    coder, centres = quantiser.coder, quantiser.centres.to(x)
    half, size = gpu.first_half(x, n, b, draw)
    sigma = (size / n).sqrt().float()
    codes, overlap = gpu.second_half(half, b, sigma * quantiser.step, coder.low, coder.high, centres, draw)
    y = hadamard.rotate(x, draw)
    image = centres[(codes - coder.low).long()]
    assert torch.equal(codes, quantiser.codes(y, sigma))
    assert torch.allclose(size, x.double().square().sum(-1, keepdim=True), rtol=1e-14)
    assert torch.allclose(overlap, (y.double() * image).sum(-1, keepdim=True), rtol=1e-12)
    back = gpu.unrotate(codes, coder.low, centres, d, b, draw)
    assert torch.equal(back, hadamard.unrotate(image, d, draw))


@pytest.mark.parametrize("d", [100, 5000, 7850])
def test_kernels_interpreted(d: int) -> None:
    code = f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r}); import test_gpu as t"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; t.check(2, {d}, 'cpu')"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("d", [100, 5000, 200_000, 1_797_010])
def test_kernels_on_a_gpu(d: int) -> None:
    check(3, d, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("bits", [0.1, 0.25, 1.0, 4.0, 8.0])
def test_messages_of_the_gpu_are_those_of_the_cpu(bits: float) -> None:
    codec, layout = Rotated(bits), Layout.vector(30_000)
    x, draw = torch.randn(2, 30_000), Draw.seeded(3).fold(torch.arange(2))
    there = codec.compress(x.cuda(), layout, Draw(draw.key.cuda()))
    assert torch.equal(there["codes"].cpu(), codec.compress(x, layout, draw)["codes"])
    heard = codec.expand(there, layout, Draw(draw.key.cuda())).cpu()
    assert torch.allclose(heard, codec.quantise(x, layout, draw), rtol=1e-6, atol=1e-7)
