"""The scaled factor in half precision: what it is off by, what it takes, and which files it refuses."""

import pytest
import torch
from oracles import naive
from torch import nn

from fromp import FROMP, Categorical, CheckpointError, FullKernel, HalfKernel, KernelError, gp
from fromp.foundation.state import flatten

N, OUTPUTS = 12, 3


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, OUTPUTS)).double()


def data(task=0):
    x = torch.randn(30, 4, generator=torch.Generator().manual_seed(task), dtype=torch.double)
    return x, torch.arange(30) % OUTPUTS


def both(tasks=2, **options):
    """The same stream, held by either."""
    regs = [
        FROMP(network(), Categorical(), memory_size=N, jitter=1e-2, kernel=k, **options)
        for k in (FullKernel, HalfKernel)
    ]
    for reg in regs:
        for task in range(tasks):
            reg.end_task(data(task))
    return regs


def kernels(seed=0):
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(OUTPUTS, N, N, generator=generator, dtype=torch.double)
    return root @ root.mT


def half(k, jitter=1e-2, dtype=torch.float32):
    return HalfKernel.of(lambda: iter(k.split(2)), jitter, dtype)


def test_it_is_the_slow_twin_to_half_precision():
    k, d = kernels(), torch.randn(1, OUTPUTS, N, generator=torch.Generator().manual_seed(1))
    exact = torch.stack([torch.linalg.inv(one + 1e-2 * torch.eye(N)) for one in k]).double()
    expected = torch.einsum("cij,tcj->tci", exact, d.double())
    found = half(k).solve(d)
    assert found.dtype == torch.float32
    assert 1e-6 < float((found - expected).norm() / expected.norm()) < 2e-3
    assert float((d * found).sum()) == pytest.approx(float((d * expected).sum()), rel=1e-3)
    many = torch.randn(200, OUTPUTS, N, generator=torch.Generator().manual_seed(2))
    one = half(k)
    assert all(float((d * one.solve(d[None])[0]).sum()) >= 0 for d in many)


def test_the_penalty_and_its_gradient_are_the_slow_twin_s():
    _, reg = both()
    model, variance = reg.model, 1 / torch.cat([v.flatten() for v in reg.precision.values()])
    tasks = []
    for memory in reg.memories:
        k = naive.kernel(model, memory.inputs, N, Categorical(), variance) + 1e-2 * torch.eye(N)
        tasks.append((memory.inputs, N, None, naive.means(model, memory.inputs, N, Categorical()), k.inverse()))
    assert reg.penalty().item() == pytest.approx(0, abs=1e-20)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(2), dtype=torch.double)
    reg.penalty().backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
    expected = naive.penalty_gradient(model, tasks, 0.5, Categorical())
    assert float((gradient - expected).norm() / expected.norm()) < 2e-3


def test_it_takes_half_the_memory_and_as_much_as_it_says():
    full, reg = (reg._anchors()[0].kernel for reg in both(1))
    taken = reg.factor.nbytes + reg.scale.nbytes
    assert taken == HalfKernel.bytes_held(OUTPUTS, N, 8)[0]
    assert HalfKernel.bytes_held(10, 200, 4)[0] < 0.51 * FullKernel.bytes_held(10, 200, 4)[0]
    assert full.inverse.nbytes == FullKernel.bytes_held(OUTPUTS, N, 8)[0]
    assert reg.factor.dtype == torch.float16
    assert reg.scale.dtype == torch.float64  # of a model in double precision


def test_some_points_are_as_if_the_others_had_never_been_kept():
    k, points = kernels(), torch.tensor([7, 0, 4])
    some = half(k[:, points][..., points])
    found = half(k).at(points)
    d = torch.randn(1, OUTPUTS, 3, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(found.solve(d), some.solve(d), rtol=5e-3, atol=1e-4)
    assert found.factor.triu(1).eq(0).all()


def test_stacked_taken_and_moved():
    one, other = half(kernels(0)), half(kernels(1))
    stacked = HalfKernel.stack([one, other])
    d = torch.randn(2, OUTPUTS, N, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(stacked.solve(d), torch.cat([one.solve(d[:1]), other.solve(d[1:])]))
    assert torch.equal(stacked.solve_some(d[1:], [1]), other.solve(d[1:]))
    assert stacked.take(slice(1, 2)).factor.data_ptr() == stacked.factor[1:].data_ptr()  # a view
    wide = one.to(torch.double)
    assert (wide.factor.dtype, wide.scale.dtype) == (torch.float16, torch.float64)
    with pytest.raises(KernelError, match=r"not finite as torch\.float16"):
        half(1e-12 * kernels(), 1e-12).to(torch.float16)


def test_it_is_saved_and_goes_on_bit_for_bit(tmp_path):
    _, reg = both(tasks=2)
    reg.save(tmp_path)
    again = FROMP.load(tmp_path, reg.model)
    assert again.kernel is HalfKernel
    for r in (reg, again):
        r.end_task(data(2))
    found, expected = (flatten(r.state_dict())[0] for r in (again, reg))
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_a_row_that_float16_cannot_hold_is_an_error():
    k = torch.eye(2, dtype=torch.double)[None].clone()
    k[0] = torch.tensor([[1e-16, 0.999e-3], [0.999e-3, 1e10]])
    with pytest.raises(KernelError, match="float16 cannot hold"):
        half(k, 0.0)


@pytest.mark.parametrize("wrong", ["dtype", "diagonal", "above", "large", "scale", "nan", "shape", "not square"])
def test_a_file_that_holds_no_factor_is_refused(wrong):
    state = half(kernels()).state_dict()
    state = {name: value.clone() for name, value in state.items()}
    if wrong == "dtype":
        state["factor"] = state["factor"].float()
    elif wrong == "shape":
        state["scale"] = state["scale"][..., :-1]
    elif wrong == "not square":
        state["factor"] = state["factor"][..., :-1]
    elif wrong in {"scale", "nan"}:
        state["scale"][0, 1, 2] = -1.0 if wrong == "scale" else torch.nan
    else:
        place, value = {"diagonal": ((4, 4), 0.0), "above": ((4, 5), 0.1), "large": ((4, 1), 2.0)}[wrong]
        state["factor"][0, 1, place[0], place[1]] = value
    with pytest.raises(CheckpointError):
        HalfKernel.from_state(state, torch.device("cpu"))


def test_a_kernel_of_another_task_s_size_is_refused():
    _, reg = both(1)
    state = reg.state_dict()
    state["tasks"][0]["kernel"] = half(kernels()[:2], dtype=torch.double).state_dict()
    with pytest.raises(CheckpointError, match="other numbers of outputs and points"):
        reg.load_state_dict(state)


def test_outputs_a_few_at_a_time_name_the_right_one():
    k = kernels()
    k[2] *= -1
    with pytest.raises(gp.KernelError, match="kernel of output 2"):
        half(k)
