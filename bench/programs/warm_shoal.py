"""Launch again and again from one living process, with Shoal's Parallel."""

import sys

import warm

import shoal.distributed as idist


def add_up(_local_rank: int, folder: str) -> None:
    warm.stamp(folder, rank=idist.get_rank(), total=int(idist.all_reduce(1)))


def launch(num_processes: int, folder: str) -> None:
    with idist.Parallel(backend="gloo", nproc_per_node=num_processes) as parallel:
        parallel.run(add_up, folder)


if __name__ == "__main__":
    warm.serve(launch, num_processes=int(sys.argv[1]))
