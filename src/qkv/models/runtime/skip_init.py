"""Build a network without sampling its weights, which is faster on the meta device."""

from typing import Any

from torch.overrides import TorchFunctionMode


class SkipTorchInit(TorchFunctionMode):
    """Inside, torch's modules do not sample weights. On the meta device, sampling would import torch's compiler."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)
