"""A model that computes nothing, and takes a little memory with every step."""

import types

from .driver import Memory


class Linear:
    def __init__(self, inputs, outputs):
        pass


class ReLU:
    pass


class Sequential:
    def __init__(self, *layers):
        self.layers = layers

    def to(self, device):
        return self

    def parameters(self):
        return self.layers

    def __call__(self, inputs):
        return [Memory(4096, "") for _ in self.layers]


class Loss:
    def backward(self):
        pass


functional = types.SimpleNamespace(cross_entropy=lambda outputs, targets: Loss())
