"""The network as it was when the last task ended: a frozen copy, and its tensors in a state."""

import copy

from torch import Tensor, nn

from fromp.derivatives.model import bare, named_weights, plain
from fromp.derivatives.sharded import is_split
from fromp.foundation.errors import CheckpointError, FrompError
from fromp.foundation.state import State, field, tensor
from fromp.growth import has_grown


def frozen(model: nn.Module) -> nn.Module:
    """A copy of the network that stays as it is."""
    if any(map(is_split, named_weights(model).values())):
        raise FrompError(
            "the weights are split over ranks, as by fully_shard, and the network is held to a copy of itself, which "
            "FSDP2 does not make; use FROMP, which keeps no copy, or DistributedDataParallel."
        )
    return copy.deepcopy(bare(model)).eval().requires_grad_(False)


def tensors_of(network: nn.Module) -> dict[str, Tensor]:
    """Copies of its weights and buffers by name, without what torch's wrappers add to the names."""
    found = network.state_dict().items()
    return {plain(name): value.clone() for name, value in found if isinstance(value, Tensor)}


def restored(model: nn.Module, state: State, key: str) -> nn.Module:
    """The network whose tensors are state[key], in a copy of the model.

    The model may have parameters that state["weights"] does not name, and layers with more rows than it says.
    """
    saved, shapes = field(state, key, dict), field(state, "weights", dict)
    network = frozen(model)
    like = tensors_of(network)
    for name, shape in shapes.items():
        if name not in like:
            raise CheckpointError(f"the model has no tensor '{name}', the saved one had; use the same model.")
        mine, its = list(like[name].shape), list(field(saved, name, Tensor).shape) if name in saved else "missing"
        if its != shape or not (mine == its or has_grown(mine, its)):
            raise CheckpointError(f"'{name}' is {mine} in the model and {its} in the saved one; use the same model.")
        tensor(saved, name, floating=like[name].is_floating_point())
    if unnamed := saved.keys() - shapes.keys():
        raise CheckpointError(f"the saved network has a '{min(unnamed)}' of no shape; restore it from a copy.")
    shorter: dict[int, nn.Parameter] = {}  # in the place of parameters that have grown since, which may be shared
    for path, module in network.named_modules():
        for own, value in [*module._parameters.items(), *module._buffers.items()]:
            name = plain(f"{path}.{own}" if path else own)
            if value is None or name not in saved:
                continue
            old = saved[name].to(value)
            if old.shape == value.shape:
                value.copy_(old)
            else:
                setattr(module, own, shorter.setdefault(id(value), nn.Parameter(old, requires_grad=False)))
    return network
