"""What is kept can be taken back: examples and tasks that are forgotten leave nothing behind."""

import gc
import struct

import pytest
import torch
from oracles.small import HEADS, data, move, network

from fromp import FROMP, Bernoulli, Categorical, FrompError, IdentityKernel, top
from fromp.foundation.errors import KernelError
from fromp.foundation.state import flatten

GONE = [1, 4]  # places in the memory of task 1
EXAMPLES = 12


def ours(task):
    """Data that no other test has, whose values can be searched for in the whole process."""
    x, y = data(5000 + task)
    return x - 5000, y


def order():
    """Scores by which a task's examples are kept in the order of its data."""
    return torch.arange(EXAMPLES, 0, -1.0)


def taught(never=(), tasks=3, **options):
    """Three tasks of eight points; those of task 1 whose places are in `never` were never kept."""
    model = network()
    options = {"memory_size": 8, "jitter": 1e-3, "prior_precision": 1e-2, "select": top} | options
    reg = FROMP(model, Categorical(), **options)
    for task in range(tasks):
        move(model, 0.1 * task)
        scores = order()
        if task == 1:
            scores[list(never)] = -1.0
            reg.memory_size -= len(never)
        reg.end_task(ours(task), head=HEADS[task], scores=scores)
        reg.memory_size = options["memory_size"]
    return model, reg


def close(one, other):
    ones, others = flatten(one)[0], flatten(other)[0]
    assert ones.keys() == others.keys()
    for name, value in ones.items():
        if name != "generator" and "score" not in name:
            torch.testing.assert_close(value, others[name], rtol=1e-9, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}")


def held(reg):
    """Every number that the process has in a tensor, as bytes."""
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if type(thing) is torch.Tensor]
    every = [*tensors, *flatten(reg.state_dict())[0].values()]
    return b"|".join(bytes(t.untyped_storage()) for t in every if not t.is_meta)


@pytest.mark.parametrize("kernel", [None, IdentityKernel], ids=["full", "identity"])
@pytest.mark.parametrize("moved", [0.0, 0.3], ids=["at the end of a task", "in the middle of one"])
def test_forgotten_examples_are_as_if_never_kept(kernel, moved):
    options = {} if kernel is None else {"kernel": kernel}
    (model, reg), (other, never) = taught(**options), taught(never=GONE, **options)
    for one in (model, other):
        move(one, moved)
    reg.forget(1, examples=GONE)
    assert [len(memory) for memory in reg.memories] == [8, 6, 8]
    close(reg.state_dict(), never.state_dict())
    for one, r in ((model, reg), (other, never)):
        move(one, 0.2)
        r.penalty().backward()
    assert reg.penalty().item() > 0
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-9, atol=1e-9)
    for r in (reg, never):
        r.end_task(ours(3), head=HEADS[0], scores=order())
    close(reg.state_dict(), never.state_dict())


def test_nothing_of_a_forgotten_example_is_left(tmp_path):
    _, reg = taught()
    anchor = reg._anchors()[1]
    values = [*anchor.memory.inputs[GONE].flatten().tolist(), *anchor.mean[:, GONE].flatten().tolist()]
    gone = {struct.pack("d", value) for value in values}
    del anchor
    assert len(gone) == 10
    before = held(reg)
    assert all(value in before for value in gone)
    reg.forget(1, examples=GONE)
    memory, now = reg.memories[1], held(reg)
    assert all(struct.pack("d", value) in now for value in memory.inputs.flatten().tolist())
    assert not any(value in now for value in gone)
    assert (memory.indices.tolist(), memory.labels.tolist()) == ([0, 2, 3, 5, 6, 7], [0, 0, 1, 1, 0, 1])
    assert memory.scores.tolist() == [12, 10, 9, 7, 6, 5]
    reg.save(tmp_path)
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert all(struct.pack("d", value) in written for value in memory.inputs.flatten().tolist())
    assert not any(value in written for value in gone)


def test_forgetting_every_example_forgets_the_task():
    (_, reg), (_, whole) = taught(), taught()
    precision = {name: value.clone() for name, value in reg.precision.items()}
    reg.forget(1, examples=torch.arange(4))
    reg.forget(1, examples=range(4))
    whole.forget(1)
    assert [memory.head for memory in reg.memories] == [HEADS[0], HEADS[2]]
    close(reg.state_dict(), whole.state_dict())
    assert all(torch.equal(reg.precision[name], value) for name, value in precision.items())


def test_turns_go_on_while_the_tasks_are_the_same():
    _, reg = taught(tasks_per_step=1)
    reg.penalty()
    turns = reg._turns.tolist()
    assert len(turns) == 2
    reg.forget(1, examples=[0])
    assert reg._turns.tolist() == turns
    reg.forget(1)
    assert reg._turns.tolist() == []


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ([8], "task 1 has no example 8 to forget: 8 are kept, counted from 0"),
        ([0, -1], "task 1 has no example -1 to forget"),
        ([True], "task 1 has no example True to forget"),
        (3, r"examples=3 is not a list of places in memories\[1\]; write examples=\[3\]"),
        ("all", "examples=all is not a list"),
    ],
)
def test_places_that_are_not_there(examples, message):
    _, reg = taught()
    before = reg._prior
    with pytest.raises(FrompError, match=message):
        reg.forget(1, examples=examples)
    assert reg._prior is before


def test_a_kernel_that_rounding_has_spoilt():
    _, reg = taught()
    before, inverse = reg._prior, reg._anchors()[1].kernel.inverse
    inverse[..., GONE[0], GONE[0]] = -1.0
    with pytest.raises(KernelError, match="forget the whole task, or use a larger jitter"):
        reg.forget(1, examples=GONE)
    assert reg._prior is before
    reg.forget(1)
    assert len(reg.memories) == 2


def parted(weights=0.3, **options):
    """A start of two tasks, two sites that went on from it with one task each, and one that learned both in turn."""
    options = {"memory_size": 8, "jitter": 1e-3, "prior_precision": 1e-2} | options
    sites = []
    for new in ((), (2,), (3,), (2, 3)):
        model = network(outputs=8)
        reg = FROMP(model, Categorical(), **options)
        for task in (0, 1, *new):
            if task == 2 or (task == 3 and 2 not in new):
                move(model, weights)  # the weights at which a site's new tasks end
            reg.end_task(ours(task), head=(2 * task, 2 * task + 1))
        sites.append(reg)
    return sites


@pytest.mark.parametrize("options", [{}, {"kernel": IdentityKernel}, {"tau": 2.0, "memory_size": 5}], ids=str)
def test_merged_sites_are_as_if_one_had_learned_both_tasks_in_turn(options):
    start, here, there, both = parted(**options)
    theirs = there.state_dict()
    here.merge(there, start)
    close(here.state_dict(), both.state_dict())
    close(there.state_dict(), theirs)
    assert [memory.head for memory in here.memories] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    for reg in (here, both):
        move(reg.model, 0.1)
        reg.end_task(ours(4), head=(0, 1))
    close(here.state_dict(), both.state_dict())


def test_the_prior_is_taken_at_the_weights_that_the_model_has():
    start, here, there, both = parted()
    model = network(outputs=8)
    for p, q, r in zip(model.parameters(), here.model.parameters(), start.model.parameters(), strict=True):
        p.data = (q.data + r.data) / 2
    here.model.load_state_dict(model.state_dict())
    here.merge(there, start)
    both.model.load_state_dict(model.state_dict())
    expected = both._prior_at(list(both.memories), both.precision, both.ranks)
    for found, anchor in zip(here._anchors(), expected.anchors, strict=True):
        torch.testing.assert_close(found.mean, anchor.mean, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found.kernel.inverse, anchor.kernel.inverse, rtol=1e-9, atol=1e-9)
    assert here.penalty().item() == 0


def test_sites_that_began_with_nothing():
    one, two, both = (FROMP(network(), Categorical(), memory_size=8, jitter=1e-3) for _ in range(3))
    one.end_task(ours(0), head=HEADS[0])
    two.end_task(ours(1), head=HEADS[1])
    for task in (0, 1):
        both.end_task(ours(task), head=HEADS[task])
    one.merge(two)
    close(one.state_dict(), both.state_dict())


def test_saved_sites_are_merged(tmp_path):
    start, here, there, both = parted()
    start.save(tmp_path / "start")
    there.save(tmp_path / "there")
    model = here.model
    here.merge(FROMP.load(tmp_path / "there", model), FROMP.load(tmp_path / "start", model))
    close(here.state_dict(), both.state_dict())


def test_nothing_is_left_of_a_task_that_each_site_has_forgotten_in_part():
    start, here, there, both = parted()
    here.forget(1, examples=range(4))
    there.forget(1, examples=range(4, 8))
    both.forget(1)
    here.merge(there, start)
    close(here.state_dict(), both.state_dict())


def test_what_one_site_has_forgotten_stays_forgotten():
    start, here, there, both = parted()
    here.forget(0, examples=[1])
    there.forget(0, examples=[2])
    there.forget(1)
    both.forget(0, examples=[1, 2])
    both.forget(1)
    here.merge(there, start)
    close(here.state_dict(), both.state_dict())


def broken_merges():
    start, here, there, both = parted()
    apart = FROMP(network(outputs=8), Categorical(), prior_precision=1e-2, memory_size=8, jitter=1e-3)
    for task in (5, 6):
        apart.end_task(ours(task), head=(0, 1))
    other_prior = FROMP(network(outputs=8), Categorical(), prior_precision=1.0)
    yield here, there, None, "task 0 of this regulariser and task 0 of the other one hold the same examples"
    yield here, there, here, "precision of '.*' in the other one is below that of the start"
    yield here, there, apart, "this regulariser holds none of the 2 tasks of the start"
    yield here, apart, start, "the other one holds none of the 2 tasks of the start"
    yield here, here, start, "task 2 of this regulariser and task 2 of the other one hold the same examples"
    yield here, both, start, "task 2 of this regulariser and task 2 of the other one hold the same examples"
    yield here, other_prior, start, "prior_precision is 0.01 here and 1 there"
    yield here, FROMP(network(outputs=8), Bernoulli(), prior_precision=1e-2), start, "the likelihoods are"
    large = FROMP(network(outputs=9), Categorical(), prior_precision=1e-2, memory_size=4, jitter=1e-3)
    large.end_task(ours(7), head=(0, 1))
    yield here, large, start, "the parameter '2.weight' is"


@pytest.mark.parametrize("place", range(9))
def test_sites_that_cannot_be_merged(place):
    here, there, start, message = list(broken_merges())[place]
    before, precision = here._prior, here.precision
    with pytest.raises(FrompError, match=message):
        here.merge(there, start)
    assert (here._prior, here.precision) == (before, precision)


def test_a_budget_in_total_shrinks_the_past_as_forget_does():
    model = network()
    reg = FROMP(model, Categorical(), total_memory=12, jitter=1e-3, prior_precision=1e-2)
    held = FROMP(model, Categorical(), memory_size=12, jitter=1e-3, prior_precision=1e-2)
    for task, (size, sizes) in enumerate([(12, [12]), (6, [6, 6]), (4, [4, 4, 4])]):
        held.memory_size = size
        for one in (reg, held):
            one.end_task(ours(task), head=HEADS[task])
        for earlier in range(task):
            memory = held.memories[earlier]
            weakest = []
            for label in (0, 1):
                of_class = (memory.labels == label).nonzero().flatten()
                weakest += of_class[memory.scores[of_class].argsort()][: (len(memory) - size) // 2].tolist()
            held.forget(earlier, examples=weakest)
        assert [len(memory) for memory in reg.memories] == sizes
        close(reg.state_dict(), held.state_dict())


def test_what_a_small_task_lacks_goes_to_the_others():
    reg = FROMP(network(), Categorical(), total_memory=17, jitter=1e-3)
    x, y = ours(0)
    reg.end_task((x[:4], y[:4]), head=HEADS[0])
    for task in (1, 2):
        reg.end_task(ours(task), head=HEADS[task])
    assert [len(memory) for memory in reg.memories] == [4, 7, 6]


def test_a_budget_that_is_too_small(tmp_path):
    reg = FROMP(network(), Categorical(), total_memory=3, jitter=1e-3)
    reg.end_task(ours(0), head=HEADS[0])
    before = reg._prior
    with pytest.raises(FrompError, match="total_memory=3 leaves 1 points for a task of 2 classes; raise total_memory"):
        reg.end_task(ours(1), head=HEADS[1])
    reg.total_memory = 1
    with pytest.raises(FrompError, match="total_memory=1 is smaller than 2 tasks"):
        reg.end_task(ours(1), head=HEADS[1])
    assert reg._prior is before
    for wrong in (0, 1.5, "all"):
        with pytest.raises(FrompError, match=f"total_memory={wrong} must be"):
            reg.total_memory = wrong
    reg.save(tmp_path)
    assert FROMP.load(tmp_path, network()).total_memory == 1
