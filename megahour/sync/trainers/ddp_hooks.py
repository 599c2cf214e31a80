"""Communication hooks of DDP. DDP reads their annotations as objects, so this module has no postponed ones."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd


def bf16_mean(process_group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """The mean over workers of a bucket that travels in bf16, as torch's `bf16_compress_hook`, which refuses gloo."""
    short = bucket.buffer().to(torch.bfloat16).div_(process_group.size())
    work = dist.all_reduce(short, group=process_group, async_op=True)
    assert work is not None

    def widen(done: torch.futures.Future[list[Tensor]]) -> Tensor:
        return bucket.buffer().copy_(done.value()[0])

    mean: torch.futures.Future[Tensor] = work.get_future().then(widen)
    return mean


def powersgd_mean(state: powersgd.PowerSGDState, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """torch's PowerSGD hook, ended before it returns.

    It begins its second and third sum in callbacks. Beside another sum (of the next bucket, or of the map of unused
    parameters) their order may differ between workers, which gloo answers by ending the process, as it matches sums by
    order.
    """
    mean: torch.futures.Future[Tensor] = powersgd.powerSGD_hook(state, bucket)
    mean.wait()
    return mean
