"""The tensors of a checkpoint by slot; what nobody asks for is an error at the end."""

from dataclasses import replace
from math import prod

import numpy as np

from rillm.checkpoint import Checkpoint, Tensor
from rillm.errors import MissingTensor, ShapeMismatch, UnexpectedTensor
from rillm.families.base import Family
from rillm.weights.packing import values_of


class Tensors:
    """Finds tensors by the family's names.

    Attributes
    ----------
    names : mapping
        Slot to name.
    n_parameters : int
        Of what was taken so far.
    """

    def __init__(self, checkpoint: Checkpoint, family: Family):
        self.names = family.names
        self.tensors = dict(checkpoint.tensors)
        self.file = checkpoint.path
        self.unused = set(self.tensors)
        self.n_parameters = 0

    def has(self, slot: str) -> bool:
        """Whether there is a tensor of a slot that is no layer's."""
        return self._name(slot, None) in self.tensors

    def find(self, slot: str, layer: int | None, shape: tuple[int, ...]) -> Tensor | None:
        """The tensor of a slot, or None; ShapeMismatch if it has another shape."""
        name = self._name(slot, layer)
        tensor = self.tensors.get(name)
        if tensor is not None and tensor.shape != shape:
            raise ShapeMismatch(
                f"{tensor.file}: tensor {name} has shape {tensor.shape}, "
                f"expected {shape} from the config"
            )
        self.unused.discard(name)
        return tensor

    def get(self, slot: str, layer: int | None, shape: tuple[int, ...]) -> Tensor:
        """The tensor of a slot; MissingTensor, ShapeMismatch."""
        is_first = self._name(slot, layer) in self.unused
        if (tensor := self.find(slot, layer, shape)) is None:
            raise MissingTensor(
                f"{self.file}: tensor {self._name(slot, layer)} of shape {shape} is missing: "
                "the file is incomplete, or its config belongs to another model"
            )
        self.n_parameters += prod(shape) * is_first
        return tensor

    def transposed(self, tensor: Tensor) -> Tensor:
        """Rows and columns exchanged: data is a view [rows, columns], copied when it is packed."""
        item = {"F32": np.uint32, "F16": np.uint16, "BF16": np.uint16}[tensor.kind]
        values = tensor.data.view(item).reshape(tensor.shape).T
        return replace(tensor, shape=tensor.shape[::-1], data=values)

    def qk_norm_weight(self, slot, layer, n_heads, head_dim, scope) -> np.ndarray:
        """float32 [n_heads, head_dim], whether the file holds one head, each, or all in a row."""
        if scope == "head":
            one = values_of(self.get(slot, layer, (head_dim,)))
            return np.broadcast_to(one, (n_heads, head_dim))
        if scope == "whole":
            whole = values_of(self.get(slot, layer, (n_heads * head_dim,)))
            return whole.reshape(n_heads, head_dim)
        if "{part}" in self.names[slot]:
            heads = [self.get(f"{slot}/{h}", layer, (head_dim,)) for h in range(n_heads)]
            return np.stack([values_of(head) for head in heads])
        each = self.get(slot, layer, (n_heads, head_dim))
        return values_of(replace(each, shape=(n_heads * head_dim,))).reshape(n_heads, head_dim)

    def activation_parameters(self, layer: int) -> np.ndarray:
        """xIELU's [alpha_p, alpha_n, beta, epsilon], as its formula uses them."""
        names = ("alpha_p", "alpha_n", "beta", "eps")
        shapes = ((1,), (1,), (), ())
        stored = []
        for name, shape in zip(names, shapes, strict=True):
            tensor = self.get(f"activation_parameters/{name}", layer, shape)
            stored.append(float(values_of(replace(tensor, shape=(1,)))[0]))
        alpha_p, alpha_n, beta, epsilon = stored
        softplus = np.logaddexp(0.0, [alpha_p, alpha_n])
        return np.array([softplus[0], beta + softplus[1], beta, epsilon], np.float32)

    def _name(self, slot: str, layer: int | None) -> str:
        """Of "slot", of its bias ("slot.bias"), or of its part ("slot/part")."""
        slot, _, bias = slot.partition(".")
        slot, _, part = slot.partition("/")
        name = self.names.get(slot, slot).format(layer, part=part)
        if bias:
            name = name.removesuffix("weight") + "bias"
        bare = name.partition(".")[2]  # a checkpoint of the bare decoder has no first word
        return bare if name not in self.tensors and bare in self.tensors else name

    def check_all_used(self) -> None:
        """Raises UnexpectedTensor, naming the first of them."""
        if rest := sorted(self.unused):
            more = f" and {len(rest) - 3} more" if len(rest) > 3 else ""
            raise UnexpectedTensor(
                f"{self.file}: nobody uses {', '.join(rest[:3])}{more}: the config says another "
                "model (a bias or a layer too many?), so its logits would be wrong"
            )
