"""The subsampling of NeMo's older Conformers (`striding`), for transformers' Parakeet, which has the newer one only."""

from __future__ import annotations

import math
from typing import Any

STRIDING = {"nemo_subsampling": "striding"}
"""In the `architecture` of a `.model.json`: Parakeet with this subsampling."""


def with_striding(kind: Any) -> Any:
    """Class `kind` of transformers (ParakeetForCTC) whose encoder has NeMo's `striding`.

    That is whole 3x3 convolutions of stride 2, where `dw_striding` has a depthwise and a 1x1 convolution each. Padding,
    ReLU, masks and the linear layer behind them are the same, and those of transformers are used.
    """
    from torch.nn import Conv2d, ModuleList, ReLU

    class Striding(kind):  # type: ignore[misc]
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            channels, layers = config.encoder_config.subsampling_conv_channels, ModuleList()
            for number in range(int(math.log2(config.encoder_config.subsampling_factor))):
                layers.append(Conv2d(channels if number else 1, channels, kernel_size=3, stride=2, padding=1))
                layers.append(ReLU())
            self.encoder.subsampling.layers = layers

    return Striding
