"""What every launcher starts: a plain PyTorch program that joins its group and adds one number up."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
if dist.get_rank() == 0:
    print(f"world size {int(total.item())}", flush=True)
dist.destroy_process_group()
