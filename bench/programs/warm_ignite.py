"""Launch again and again from one living process, with Ignite's Parallel."""

import sys

import ignite.distributed as idist
import warm


def add_up(_local_rank: int, folder: str) -> None:
    warm.stamp(folder, rank=idist.get_rank(), total=int(idist.all_reduce(1)))


def launch(num_processes: int, folder: str) -> None:
    with idist.Parallel(backend="gloo", nproc_per_node=num_processes) as parallel:
        parallel.run(add_up, folder)


if __name__ == "__main__":
    warm.serve(launch, num_processes=int(sys.argv[1]))
