"""Every method, with its card: a new one is a file here, or one outside that a plug-in loads."""

# ruff: noqa: I001  (in the order of tables)
from fromp.lab.methods import fromp, quadratic, si
from fromp.lab.methods.vcl import vcl
from fromp.lab.methods.relaxed import method as relaxed
from fromp.lab.methods import rehearsal, mixed_past, frcl, bounds
from fromp.lab.methods.card import METHODS, MethodCard, method, register

__all__ = [
    "METHODS", "MethodCard", "bounds", "frcl", "fromp", "method", "mixed_past", "quadratic", "register", "rehearsal",
    "relaxed", "si", "vcl",
]  # fmt: skip
