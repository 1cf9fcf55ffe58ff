"""torchrun, ``python -m torch.distributed.run``, ``shoal launch`` and Shoal's own workers."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.errors import EnvironmentConflictError
from shoal.runtime.environments.base import Placement, read_int

__all__ = ["TorchElastic"]


class TorchElastic:
    """The variables that torch's elastic agent sets in every worker."""

    def recognises(self, variables: Mapping[str, str]) -> bool:
        """RANK and WORLD_SIZE are there; either one alone is a launcher's environment cut short."""
        return "RANK" in variables or "WORLD_SIZE" in variables

    def read(self, variables: Mapping[str, str]) -> Placement:
        """The agent's variables; LOCAL_WORLD_SIZE and GROUP_RANK fall back to one node where they are missing."""
        rank = read_int(variables, "RANK")
        world_size = read_int(variables, "WORLD_SIZE")
        local_rank = read_int(variables, "LOCAL_RANK", rank)
        local_world_size = read_int(variables, "LOCAL_WORLD_SIZE", world_size)
        node_rank = read_int(variables, "GROUP_RANK", 0)
        num_nodes = read_int(variables, "GROUP_WORLD_SIZE", max(1, -(-world_size // max(1, local_world_size))))
        for name, value, bound_name, bound in (
            ("RANK", rank, "WORLD_SIZE", world_size),
            ("LOCAL_RANK", local_rank, "LOCAL_WORLD_SIZE", local_world_size),
        ):
            if value >= bound:
                raise EnvironmentConflictError(
                    f"{name}={value} and {bound_name}={bound} contradict each other: ranks count from 0, so "
                    f"{name} must be less than {bound}; correct one of them"
                )
        read_int(variables, "MASTER_PORT")  # torch itself reads these two, and says less when one is missing
        if not variables.get("MASTER_ADDR"):
            raise EnvironmentConflictError(
                f"RANK={rank} and WORLD_SIZE={world_size} were found, but MASTER_ADDR is not set; set it to the host "
                "of rank 0, or unset the others"
            )
        return Placement(
            source="torchelastic",
            placed=True,
            rank=rank,
            local_rank=local_rank,
            world_size=world_size,
            local_world_size=local_world_size,
            node_rank=node_rank,
            num_nodes=num_nodes,
            backend=variables.get("SHOAL_BACKEND"),
        )
