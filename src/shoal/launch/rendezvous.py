"""How the nodes of a job meet."""

from __future__ import annotations

from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)
from torch.distributed.elastic.rendezvous import registry as rendezvous_registry

from shoal.launch.spec import LaunchSpec

__all__ = ["rendezvous_for"]

_TIMEOUT_S = 900
_OWN_STORE_TIMEOUT_S = 60


def rendezvous_for(spec: LaunchSpec, run_id: str) -> RendezvousHandler:
    """The handler that the elastic agent meets the other nodes by."""
    if spec.nnodes == 1:
        return _OneNode(spec.master_addr, spec.master_port or 0, run_id)
    parameters = RendezvousParameters(
        backend="static",
        endpoint=f"{spec.master_addr}:{spec.master_port}",
        run_id=run_id,
        min_nodes=spec.nnodes,
        max_nodes=spec.nnodes,
        rank=spec.node_rank,
        timeout=_TIMEOUT_S,
    )
    return rendezvous_registry.get_rendezvous_handler(parameters)


class _OneNode(RendezvousHandler):
    """There is nobody to meet: the store is opened, on a free port where none was asked for, and that is all.

    torch's own handlers wait a random part of a second for others first.
    """

    def __init__(self, address: str, port: int, run_id: str) -> None:
        self._address = address
        self._port = port
        self._run_id = run_id
        self._store: TCPStore | None = None

    @property
    def use_agent_store(self) -> bool:
        """Workers join through this store, too."""
        return True

    def get_backend(self) -> str:
        """The handler's name in the agent's records."""
        return "one_node"

    def get_run_id(self) -> str:
        """The id of the job."""
        return self._run_id

    def next_rendezvous(self) -> RendezvousInfo:
        """Node 0 of 1."""
        if self._store is None:
            self._store = TCPStore(
                self._address,
                self._port,
                None,
                True,
                timedelta(seconds=_OWN_STORE_TIMEOUT_S),
                wait_for_workers=False,
                multi_tenant=True,
            )
        info = RendezvousStoreInfo(self._address, self._store.port)
        return RendezvousInfo(PrefixStore(self._run_id, self._store), 0, 1, info)

    def is_closed(self) -> bool:
        """Nobody else could come."""
        return False

    def set_closed(self) -> None:
        """Nobody else could come."""

    def num_nodes_waiting(self) -> int:
        """Nobody."""
        return 0

    def shutdown(self) -> bool:
        """Close the store, and with it the port."""
        self._store = None
        return True
