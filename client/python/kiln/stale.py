"""Dropping a graph that was traced with a wrong declaration: a custom operator's fake told another dtype, size, device
or number of results than the operator gives.

What was traced stays wrong when the declaration is put right, since no key knows the body of a fake. So it is dropped
where it is kept: in torch's AOTAutograd cache, which later processes read, and in Dynamo's of this process. kiln's
store keeps its program, which nobody asks for again: the right graph has another key.
"""
import os

from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache
from torch._guards import CompileId

from . import records


def drop(request_key: bytes, compile_id: CompileId | None, contradiction: str) -> None:
    """Has the next call of a graph retraced, in this process and in later ones: of the CompiledGraph of that key,
    made in that compile of Dynamo's."""
    records.count("contradicted")
    _forget_entries(request_key)
    retrace(compile_id, f"kiln: {contradiction}")


def _forget_entries(request_key: bytes) -> None:
    """Removes what torch's cache keeps of the graph. An entry's file holds the keys of its programs as they are."""
    for folder, _, names in os.walk(AOTAutogradCache._get_tmp_dir()):
        for name in names:
            path = os.path.join(folder, name)
            try:
                with open(path, "rb") as file:
                    if request_key not in file.read():
                        continue
                os.unlink(path)
            except OSError:
                pass  # another process has removed it, or it is not ours


def may_retrace() -> bool:
    """Whether the program allows what was traced to be traced again, which it may have forbidden once all is warm."""
    from torch._dynamo import config, eval_frame

    return not config.error_on_recompile and eval_frame._stance.stance == "default"


def retrace(compile_id: CompileId | None, reason: str) -> None:
    """Invalidates what Dynamo made in one compile, as it does itself where an object of a guard is gone."""
    from torch._dynamo import convert_frame
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list
    from torch._dynamo.guards import DeletedGuardManagerWrapper

    if compile_id is None:
        return
    with convert_frame.compile_lock:
        codes = [code for weak in convert_frame.input_codes.seen if (code := weak()) is not None]
        for entry in (entry for code in codes for entry in _debug_get_cache_entry_list(code)):
            manager = entry.guard_manager
            if entry.compile_id != compile_id or isinstance(manager, DeletedGuardManagerWrapper):
                continue
            if manager.extra_state is not None:
                manager.extra_state.invalidate(entry, DeletedGuardManagerWrapper(reason))
