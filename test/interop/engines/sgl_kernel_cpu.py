"""Stands in for the package sgl_kernel, which cpustub.py installs from this file.

SGLang's kernels for CPUs are on no registry. Without AMX, SGLang computes with torch
alone, but it imports names from sgl_kernel everywhere and calls one of them. That one
is here, and two of Triton's, which releases up to 0.5.17 call on CPUs too. Every other
name can be imported and fails when it is called.
"""

import importlib.abc
import importlib.machinery
import pathlib
import sys

import torch


def assign_req_to_token_pool_cpu(requests, req_to_token, starts, ends, out_cache_loc, _width=None):
    """Writes the next slots of out_cache_loc to the row of each request, from its start to its end."""
    at = 0
    for request, start, end in zip(requests.tolist(), starts.tolist(), ends.tolist()):
        slots = out_cache_loc[at : at + end - start]
        req_to_token[request, start:end] = slots.to(req_to_token.dtype)
        at += end - start


class Kernel:
    """A function that is called as Triton's kernels are: kernel[grid](...)."""

    def __init__(self, function):
        self.function = function

    def __getitem__(self, _grid):
        return self.function


@Kernel
def alloc_extend_kernel(prefixes, lengths, last_slots, free_pages, out, _bound, page):
    """Writes the slots of the tokens behind each prefix: the rest of its last page, then free pages."""
    at = taken = 0
    for prefix, length, last in zip(prefixes.tolist(), lengths.tolist(), last_slots.tolist()):
        rest = min(length - prefix, -prefix % page)
        out[at : at + rest] = torch.arange(last + 1, last + 1 + rest)
        at, more = at + rest, length - prefix - rest
        pages = free_pages[taken : taken + -(-more // page)]
        out[at : at + more] = (pages[:, None] * page + torch.arange(page)).reshape(-1)[:more]
        at, taken = at + more, taken + len(pages)


@Kernel
def alloc_decode_kernel(lengths, last_slots, free_pages, out, _bound, page):
    """Writes the slot of each request's last token: behind the one before it, or the first of a free page."""
    taken = 0
    for i, (length, last) in enumerate(zip(lengths.tolist(), last_slots.tolist())):
        if length % page == 1 or page == 1:
            out[i] = free_pages[taken] * page
            taken += 1
        else:
            out[i] = last + 1


class Missing:
    """A kernel which is not here, or an attribute of one."""

    def __init__(self, name):
        self.__name__ = name

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self.__name__}.{name}")

    def __call__(self, *_args, **_kwargs):
        raise NotImplementedError(f"{self.__name__} is not in the stand-in for sgl_kernel")

    def __or__(self, _other):
        return self

    __ror__ = __or__


def missing_attribute(module):
    def attribute(name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{module}.{name}")

    return attribute


class MissingModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Every submodule of sgl_kernel imports."""

    def find_spec(self, name, _path=None, _target=None):
        if name.startswith("sgl_kernel."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def exec_module(self, module):
        module.__getattr__ = missing_attribute(module.__name__)


__getattr__ = missing_attribute("sgl_kernel")
sys.meta_path.append(MissingModules())

# Imports look up these operators. None has an implementation.
operators = torch.library.Library("sgl_kernel", "DEF")
for operator in (pathlib.Path(__file__).parent / "operators.txt").read_text().split():
    operators.define(f"{operator}(Tensor x) -> Tensor")


def without_pinned_memory(function):
    """Pinned memory needs an accelerator; LoRA asks for it without looking."""

    def unpinned(*args, **kwargs):
        kwargs.pop("pin_memory", None)
        return function(*args, **kwargs)

    return unpinned


torch.Tensor.pin_memory = lambda tensor, *_args: tensor
for factory in ("empty", "zeros", "ones", "arange", "tensor", "full"):
    setattr(torch, factory, without_pinned_memory(getattr(torch, factory)))
