"""Communication hooks for DDP. It needs their annotations as objects, so this module must not postpone them."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd


def bf16_mean(process_group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """The mean over workers of a bucket sent in bf16; like torch's `bf16_compress_hook`, which rejects gloo."""
    short = bucket.buffer().to(torch.bfloat16).div_(process_group.size())
    work = dist.all_reduce(short, group=process_group, async_op=True)
    assert work is not None

    def widen(done: torch.futures.Future[list[Tensor]]) -> Tensor:
        return bucket.buffer().copy_(done.value()[0])

    mean: torch.futures.Future[Tensor] = work.get_future().then(widen)
    return mean


def powersgd_mean(state: powersgd.PowerSGDState, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """torch's PowerSGD hook, completed before it returns.

    The hook starts its second and third all-reduce in callbacks. If another one runs at the same time (of the next
    bucket, or of the map of unused parameters), their order may differ between workers. gloo matches all-reduces by
    order, and would abort the process.
    """
    mean: torch.futures.Future[Tensor] = powersgd.powerSGD_hook(state, bucket)
    mean.wait()
    return mean
