"""Launch again and again from one living process, with Accelerate's debug_launcher or notebook_launcher."""

import sys

import torch
import warm
from accelerate import PartialState, debug_launcher, notebook_launcher


def add_up(folder: str) -> None:
    state = PartialState(cpu=True)
    total = torch.ones(1)
    if state.num_processes > 1:
        torch.distributed.all_reduce(total)
    warm.stamp(folder, rank=state.process_index, total=int(total.item()))


def launch_debug(num_processes: int, folder: str) -> None:
    debug_launcher(add_up, args=(folder,), num_processes=num_processes)


def launch_notebook(num_processes: int, folder: str) -> None:
    notebook_launcher(add_up, args=(folder,), num_processes=num_processes)


if __name__ == "__main__":
    warm.serve({"debug": launch_debug, "notebook": launch_notebook}[sys.argv[2]], num_processes=int(sys.argv[1]))
