"""The Triton kernels against the torch lines they stand for: interpreted on a CPU, and compiled on a GPU."""

import os
import subprocess
import sys

import pytest
import torch

from fedcom.codecs import (
    Auto,
    Codec,
    CountSketch,
    Dithered,
    Int,
    Natural,
    Peaks,
    Qsgd,
    RandK,
    Rotated,
    Sign,
    TernGrad,
    TopK,
)
from fedcom.codecs.coding import hadamard, integer_stream
from fedcom.codecs.coding.entropy import histogram
from fedcom.codecs.coding.uniform import for_rate
from fedcom.codecs.kernels import gpu
from fedcom.draws import Draw
from fedcom.vectors import Layout

pytest.importorskip("triton", reason="triton comes with torch for CUDA")
CODED: list[Codec] = [Rotated(2.0), Dithered(q=0.1), Dithered(bits=2.0), Auto(2.0), Auto(q=0.1)]
KINDS = (Int, Qsgd, Natural, TopK, RandK, CountSketch, TernGrad, Sign)
OTHERS: list[Codec] = [Peaks(0.05), TopK(0.4), *(kind() for kind in KINDS)]


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
    assert torch.equal(gpu.turn(half, b, draw), y)
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


def check_tally(device: str) -> None:
    """Symbols and raw bits are counted as they are where torch makes the codes."""
    x = torch.randn(3, 5001, generator=torch.Generator().manual_seed(0))
    x[0, :3] = torch.tensor([torch.nan, torch.inf, 1e30])
    x[2] *= 1e6  # so that there are codes of all sizes
    step, draw = torch.tensor([[0.7], [1e-3], [1e-4]]), Draw.seeded(1).fold(torch.arange(3))
    most = 2**31 - 128
    rounded = (x / step + (draw.dither(5001) - 0.5)).round().nan_to_num(0).clamp(-most, most)
    symbols, widths = integer_stream.cut(rounded.to(torch.int32))
    there = Draw(draw.key.to(device))
    counts, raw = gpu.tally(x.to(device), step.to(device), most, integer_stream.MOST, there)
    assert torch.equal(counts.cpu(), histogram(symbols, integer_stream.MOST))
    assert torch.equal(raw.cpu(), widths.sum(-1))


def test_the_tally_interpreted() -> None:
    code = f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r}); import test_gpu as t"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; t.check_tally('cpu')"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
def test_the_tally_on_a_gpu() -> None:
    check_tally("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("d", [100, 5000, 200_000, 1_797_010])
def test_kernels_on_a_gpu(d: int) -> None:
    check(3, d, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize(
    "codec", [*map(Rotated, (0.1, 0.25, 1.0, 4.0, 8.0)), *map(Peaks, (0.002, 0.02, 0.05, 1.0))], ids=repr
)
def test_messages_of_the_gpu_are_those_of_the_cpu(codec: Codec) -> None:
    layout = Layout.vector(30_000)
    x = torch.randn(2, 30_000, generator=torch.Generator().manual_seed(0))
    draw = Draw.seeded(3).fold(torch.arange(2))
    there = codec.compress(x.cuda(), layout, Draw(draw.key.cuda()))
    for name, part in codec.compress(x, layout, draw).items():
        same = torch.equal if name != "scale" or isinstance(codec, Peaks) else torch.allclose
        assert same(there[name].cpu(), part)
    heard = codec.expand(there, layout, Draw(draw.key.cuda())).cpu()
    assert torch.allclose(heard, codec.quantise(x, layout, draw), rtol=1e-6, atol=1e-7)


@pytest.mark.gpu
@pytest.mark.parametrize("codec", [*CODED, *OTHERS], ids=repr)
def test_what_is_not_finite_is_the_same_on_a_gpu(codec: Codec) -> None:
    layout, draw = Layout.vector(30_000), Draw.seeded(3).fold(torch.arange(5))
    x = torch.randn(5, 30_000, generator=torch.Generator().manual_seed(0))
    x[1, 7], x[2, 29_999], x[3] = torch.nan, -torch.inf, torch.finfo(torch.float32).max
    there, sizes = codec.transmit(x.cuda(), layout, Draw(draw.key.cuda()))
    here, real = codec.transmit(x, layout, draw)
    assert torch.equal(there.isnan().cpu(), here.isnan())
    assert there[1:3].isnan().all()
    found, wanted = (
        sum(int(torch.as_tensor(size).expand(5)[1]) for size in items.values()) for items in (sizes, real)
    )
    assert found == wanted


@pytest.mark.gpu
@pytest.mark.parametrize("bits", [0.002, 0.02])
def test_peaks_can_be_recorded_and_replayed(bits: float) -> None:
    codec, layout = Peaks(bits), Layout.vector(50_000)
    draw, x = Draw.seeded(0, "cuda").fold(torch.arange(3)), torch.randn(3, 50_000, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        codec.transmit(x, layout, draw)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        heard, _ = codec.transmit(x, layout, draw)
    x.normal_()
    graph.replay()
    assert torch.equal(heard, codec.quantise(x, layout, draw))
