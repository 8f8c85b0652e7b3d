"""The compiled pass as machine code: made once per machine, loaded without its compiler.

Loading numba takes half a second and 150 MB; what it made needs LLVM's loader alone, 0.03 s. So one
process compiles for all of them, and is gone:

    scanner.py --numba--> LLVM's language --> machine code in the user's cache --> every reader

The file's name has a digest of the sources and of the processor, so that neither can be mistaken.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path

import llvmlite.binding as llvm

from ...small_files import read_small
from ...store.folder_handles import cache_folder, make_private
from .columns import COUNTER
from .kept_kinds import KeptEvents, WantedKinds

_COMPILER_S = 600


@cache
def scan_function() -> Callable[[int], int] | None:
    """The pass over the arrays of a table at an address; None where it cannot be had."""
    path = cache_folder() / "compiled" / f"scan-{_digest()}"
    try:
        if not path.exists():
            _compile(path)
        name, _, code = read_small(path, follow_links=False).partition(b"\n")
    except (OSError, subprocess.SubprocessError):
        return None
    return _load(name.decode(), code)


def write_compiled(path: Path) -> None:
    """Compile the pass for this machine, and try it before any reader does.

    Raises OSError where it cannot be written, RuntimeError where it does not work.
    """
    from .scan_rows import Scan
    from .scanner import compile_scan

    text, name = compile_scan()
    code = _machine().emit_object(llvm.parse_assembly(text))
    kinds = WantedKinds({"counter": KeptEvents(COUNTER)}, {None: {"C": "counter"}})
    scan = Scan(kinds, _load(name, code))
    if not scan.add(b'[{"ph": "C", "name": "a", "pid": 1, "ts": 1.5, "args": {"b": 2}}]'):
        raise RuntimeError("the compiled pass does not read the plainest event")
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_bytes(name.encode() + b"\n" + code)
    part.replace(path)


def _compile(path: Path) -> None:
    """Let a process of its own compile, one at a time; those who waited find it done."""
    path.parent.parent.mkdir(parents=True, exist_ok=True)
    make_private(path.parent.parent)
    make_private(path.parent)
    with path.with_name("lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            command = [sys.executable, "-m", __name__, str(path)]
            subprocess.run(command, check=True, capture_output=True, timeout=_COMPILER_S)


def _digest() -> str:
    state = hashlib.sha256()
    for name in ("json_tokens.py", "scan_codes.py", "scanner.py"):
        state.update(Path(__file__).with_name(name).read_bytes())
    parts_of = (version("numba"), version("llvmlite"), version("numpy"), *_processor())
    state.update("\n".join(parts_of).encode())
    return state.hexdigest()[:16]


@cache
def _processor() -> tuple[str, str, str]:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    return llvm.get_process_triple(), llvm.get_host_cpu_name(), features


def _machine() -> llvm.TargetMachine:
    triple, processor, features = _processor()
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=processor, features=features, opt=3, codemodel="jitdefault", jit=True
    )


@cache
def _load(name: str, code: bytes) -> Callable[[int], int]:
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    # As numba calls: where the result goes, where an exception would go, the argument.
    kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    function = kind(engine.get_function_address(name))
    result, raised = ctypes.c_int64(), ctypes.c_void_p()
    places = ctypes.addressof(result), ctypes.addressof(raised)

    def call(address: int, held: object = engine) -> int:
        if function(*places, address):
            raise RuntimeError("the compiled pass failed")
        return result.value

    return call


if __name__ == "__main__":
    write_compiled(Path(sys.argv[1]))
