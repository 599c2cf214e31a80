"""A communication hook of DDP. DDP reads its annotations as objects, so this module has no postponed ones."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket


def bf16_mean(process_group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """The mean over workers of a bucket that travels in bf16, as torch's `bf16_compress_hook`, which refuses gloo."""
    short = bucket.buffer().to(torch.bfloat16).div_(process_group.size())
    work = dist.all_reduce(short, group=process_group, async_op=True)
    assert work is not None

    def widen(done: torch.futures.Future[list[Tensor]]) -> Tensor:
        return bucket.buffer().copy_(done.value()[0])

    mean: torch.futures.Future[Tensor] = work.get_future().then(widen)
    return mean
