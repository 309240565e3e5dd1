"""The gang that this process is in: the ranks of one training job, whom the service serves alike. Of one graph and
equal sizes each gets the same variant, or all run without kiln.

Ranks of torch.distributed are a gang by themselves: the first that needs it puts a random id into the job's store,
another one after each restart. torchrun of several nodes may keep its store when it restarts workers, and its agents
count restarts apart: with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 each restart has a store of its own. KILN_GANG_ID names
the gang of ranks that have no such store. KILN_GANG=off: no gang.

What the others are served may be beyond finding out: the service does not answer this rank, or has lost what it said.
Then the rank runs without kiln, with a warning, or, under KILN_GANG=strict, raises GangDiverges. It does not try again
by itself: a graph that this rank alone ran compiled from then on would differ from the others'.
"""
import os
import re
import secrets

import torch

from . import _C, fallback
from .errors import GangDiverges

_ID_BYTES = 16
_STORE_KEY = "kiln/gang"
_NONE = (b"", 0)


def policy() -> str:
    """"on", "off" or "strict". Raises ValueError for anything else."""
    value = os.environ.get("KILN_GANG") or "on"
    if value not in ("on", "off", "strict"):
        raise ValueError(f"kiln: KILN_GANG={value!r}; valid values are on, off, strict")
    return value


def check() -> None:
    """Raises ValueError for an environment variable that is not valid."""
    policy()
    _named()


def current() -> tuple[bytes, int]:
    """(id, ranks) of this process' gang; (b"", 0): it is in none. Raises GangDiverges under KILN_GANG=strict where the
    job's store does not say."""
    if policy() == "off":
        return _NONE
    named = _named()
    if named is not None:
        return named
    try:
        return _of_torch()
    except Exception as error:  # whatever the store raises, it is the same
        _, message = fallback.reason_of_error(error)
        if policy() == "strict":
            raise GangDiverges(f"kiln: the job's store does not name a gang: {message} (KILN_GANG=strict is set)"
                               ) from error
        fallback.note_without_gang(message)
        return _NONE


def is_member() -> bool:
    """Whether this process is in a gang, without asking the job's store. Raises as check does."""
    if policy() == "off":
        return False
    if (named := _named()) is not None:
        return named != _NONE
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def check_verdict(title: str, error: BaseException) -> None:
    """Of what ended the compile of a graph: raises GangDiverges under KILN_GANG=strict where the others may not have
    been told the same."""
    if isinstance(error, GangDiverges):
        raise error
    if isinstance(error, _C.NoVerdict) and policy() == "strict":
        _, message = fallback.reason_of_error(error)
        raise GangDiverges(f"kiln: {title} would run without kiln on this rank alone: {message} "
                           "(KILN_GANG=strict is set)") from error


def _named() -> tuple[bytes, int] | None:
    text = os.environ.get("KILN_GANG_ID")
    if not text:
        return None
    if not re.fullmatch(f"[0-9a-fA-F]{{{2 * _ID_BYTES}}}", text):
        raise ValueError(f"kiln: KILN_GANG_ID={text!r}; it takes {2 * _ID_BYTES} hexadecimal digits, new at each start "
                         "of the job")
    name = "KILN_GANG_SIZE" if os.environ.get("KILN_GANG_SIZE") else "WORLD_SIZE"
    size = os.environ.get(name) or ""
    if not re.fullmatch(r"[1-9]\d{0,8}", size):
        raise ValueError("kiln: KILN_GANG_ID is set: KILN_GANG_SIZE (or WORLD_SIZE) has to be the number of ranks, not "
                         f"{size!r}")
    return (bytes.fromhex(text), int(size)) if int(size) > 1 else _NONE


def _of_torch() -> tuple[bytes, int]:
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() < 2:
        return _NONE
    store = distributed.distributed_c10d._get_default_store()
    if store is None:  # MPI's ranks have none
        return _NONE
    # Asked each time: whoever recreates the process group has another store.
    ranks = distributed.get_world_size()
    text = store.compare_set(_store_key(ranks), "", secrets.token_hex(_ID_BYTES)).decode()
    return bytes.fromhex(text), ranks


def _store_key(ranks: int) -> str:
    """torchrun's store may outlive a restart, and all ranks of one node are of one agent, which counts them."""
    if os.environ.get("LOCAL_WORLD_SIZE") != str(ranks):
        return _STORE_KEY
    return f"{_STORE_KEY}/{os.environ.get('TORCHELASTIC_RESTART_COUNT') or 0}"
