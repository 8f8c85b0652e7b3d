"""Tokens per expert of each step, counted where the router decides.

    recorder = expert_load_recorder(model, dir="/data/profiles/tokens_per_expert")
    for batch in loader:
        train(batch)                 # any number of micro-batches
        recorder.step()

Counts stay on the device, in one [routers, experts] tensor; at the step's end they are copied
without waiting, and written by a thread once the copy has arrived. Nothing synchronises, nothing
communicates: each rank writes what it routed, and who reads adds the ranks up.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from .guard import is_chosen, is_killed, rank_here, warn, whole
from .line_writer import LineWriter
from .routers import Chooser, ForwardHook, Router, Rule, WrappedRouting, assignment, find_routers

# Steps that may be on their way to the file; more are dropped and counted.
_BUFFERS = 8
_CLOSE_SECONDS = 10.0


@dataclass(slots=True)
class _Copy:
    """Counts of one step on their way: host [routers, experts + 2], and what tells of arrival."""

    step: int
    calls: list[int]
    device: Any
    host: Any
    event: Any


def expert_load_recorder(
    model: Any,
    dir: str | os.PathLike[str],
    every: int = 1,
    top_k: int | None = None,
    rule: Rule | None = None,
    *,
    routers: str | Chooser | None = None,
    experts: int | None = None,
    source: str = "routing",
    ranks: str | int | Iterable[int] | None = None,
    rank: int | None = None,
    start_step: int = 0,
    rotate_bytes: int = 64 << 20,
    rotate_seconds: float = 600.0,
) -> ExpertLoadRecorder:
    """Count the tokens that each router of a model (or of its chunks, a list) sends to its experts.

    Steps that are multiples of `every` are written to `dir`/rank<N>.jsonl in Megatron's schema;
    `start_step` is the number of the step that comes first. Routers of Megatron, MindSpeed and
    Hugging Face are found by themselves; others by `routers`, a pattern of module names or a
    function (name, module) -> bool, and `rule`, output -> indices or boolean map; `top_k` and
    `experts` where the modules do not tell them. source="counter" reads Megatron's own
    `local_tokens_per_expert` instead (`--moe-router-enable-expert-bias`), see `reading_before`.

    Call `step()` after each optimizer step, `close()` at the end. Never raises: what fails is told
    once and disables the recorder. NPUSCOPE=0 switches it off.
    """
    recorder = ExpertLoadRecorder()
    if is_killed():
        return recorder
    try:
        here = rank_here() if rank is None else whole("rank", rank)
        every, start_step = whole("every", every, 1), whole("start_step", start_step)
        if source not in ("routing", "counter"):
            raise ValueError(f"source={source!r}: choose of routing, counter")
        if is_chosen(here, ranks):
            models = model if isinstance(model, (list, tuple)) else [model]
            routers_here = find_routers(models, routers=routers, top_k=top_k, experts=experts)
            recorder.arm(
                routers_here, rule, Path(dir), f"rank{here}", every=every, start_step=start_step,
                is_counter=source == "counter", rotate_bytes=rotate_bytes,
                rotate_seconds=rotate_seconds,
            )  # fmt: skip
    except Exception as error:
        recorder.disable(error)
    return recorder


class ExpertLoadRecorder:
    """What `expert_load_recorder` returns; also a context manager that closes itself."""

    def __init__(self) -> None:
        self.is_active = False
        self.dropped = 0  # recorded steps that were not written
        self._is_counting = False
        self._hooks: list[WrappedRouting | ForwardHook] = []
        self._writer: LineWriter | None = None
        self._at_exit: Callable[[], None] | None = None

    def arm(
        self,
        routers: list[Router],
        rule: Rule | None,
        folder: Path,
        stem: str,
        *,
        every: int,
        start_step: int,
        is_counter: bool,
        rotate_bytes: int,
        rotate_seconds: float,
    ) -> None:
        """Make it do something: `expert_load_recorder` does so."""
        self._torch = importlib.import_module("torch")
        self._graph_task = getattr(self._torch._C, "_current_graph_task_id", None)
        self._routers, self._rule, self._is_counter = routers, rule, is_counter
        self._every, self._step = every, start_step
        self._width = max(router.experts for router in routers) + 2
        self._counts: dict[Any, Any] = {}  # by device: [routers, experts + 2], see _count
        self._ones: dict[Any, Any] = {}
        self._devices: list[Any] = [None] * len(routers)
        self._calls = [0] * len(routers)
        self._free: dict[Any, deque[Any]] = {}
        self._pending: deque[_Copy] = deque()
        self._has_read_counters = False
        self._writer = LineWriter(
            folder, stem, self._lines, self._give_back, depth=_BUFFERS,
            rotate_bytes=rotate_bytes, rotate_seconds=rotate_seconds,
        )  # fmt: skip
        self._heads = [
            json.dumps({"block": one.block, "layer": one.layer})[1:-1] for one in routers
        ]
        if is_counter:
            for router in routers:
                if getattr(router.module, "local_tokens_per_expert", None) is None:
                    raise ValueError(f"{router.name} keeps no local_tokens_per_expert")
        else:
            for row, router in enumerate(routers):
                # Counts are made for the device a router is on before the first step.
                parameter = next(router.module.parameters(), None)
                if parameter is not None and parameter.device.type != "meta":
                    self._counts_on(parameter.device)
                hook = WrappedRouting if router.has_routing and rule is None else ForwardHook
                self._hooks.append(hook(router, partial(self._show, row)))
        self.is_active = True
        self._is_counting = start_step % every == 0
        here = weakref.ref(self)
        self._at_exit = partial(_close_at_exit, here)
        atexit.register(self._at_exit)
        os.register_at_fork(after_in_child=partial(_leave_child, here))

    def __enter__(self) -> ExpertLoadRecorder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def step(self) -> None:
        """A training step has ended: send its counts on their way, and those that have arrived."""
        if not self.is_active:
            return
        try:
            if self._writer is not None and self._writer.failure is not None:
                self._retire()  # which it has told
                return
            if self._is_counting:
                if self._is_counter and not self._has_read_counters:
                    self.read_counters()
                self._send()
            self._hand_over()
            self._step += 1
            self._has_read_counters = False
            self._is_counting = self._step % self._every == 0
        except Exception as error:
            self.disable(error)

    def read_counters(self) -> None:
        """With source="counter": read the routers' counters, before the optimizer clears them."""
        if not self.is_active or not self._is_counter or not self._is_counting:
            return
        try:
            for row, router in enumerate(self._routers):
                counter = router.module.local_tokens_per_expert.detach()
                counts = self._counts_on(counter.device)
                counts[row, 1 : 1 + router.experts].add_(counter.to(self._torch.int64))
                self._devices[row], self._calls[row] = counter.device, 1
            self._has_read_counters = True
        except Exception as error:
            self.disable(error)

    def reading_before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, with the counters read before it: Megatron's finalize_model_grads, which
        balances by them and clears them."""

        def read_first(*args: Any, **kwargs: Any) -> Any:
            self.read_counters()
            return function(*args, **kwargs)

        return read_first

    def close(self) -> None:
        """Write what is on its way, and publish the file. Waits for the disk, 10 s at most."""
        if not self.is_active:
            return
        try:
            for copy in self._pending:
                if copy.event is not None:
                    copy.event.synchronize()
            self._hand_over()
        except Exception as error:
            self.disable(error)
            return
        self._retire()

    def disable(self, error: BaseException) -> None:
        """Warn, and count nothing any more."""
        warn(f"recording of expert loads is switched off: {str(error) or type(error).__name__}")
        self._retire(is_told=True)

    def _retire(self, *, is_told: bool = False) -> None:
        self.is_active = self._is_counting = False
        if self._at_exit is not None:
            atexit.unregister(self._at_exit)
            self._at_exit = None
        try:
            for hook in self._hooks:
                hook.remove()
            self._hooks = []
            writer = self._writer
            if writer is None:
                return
            # Nobody waits for the disk in the middle of training.
            is_whole = writer.close(0.0 if is_told or writer.failure else _CLOSE_SECONDS)
            self.dropped += writer.dropped
            if not is_told and writer.failure is None and (self.dropped or not is_whole):
                left = "" if is_whole else "; the rest is still being written"
                warn(
                    f"expert loads: {writer.written} steps written, {self.dropped} dropped because"
                    f" the disk was too slow{left}"
                )
        except Exception as error:
            if not is_told:
                warn(f"expert loads: {str(error) or type(error).__name__}")

    def _show(self, row: int, output: Any) -> None:
        """What a router returned; called in the forward pass, so it must not fail nor wait."""
        if not self._is_counting:
            return
        try:
            router = self._routers[row]
            if router.module.training and not self._is_recomputed():
                with self._torch.no_grad():
                    self._count(row, router, assignment(output, router, self._rule).detach())
        except Exception as error:
            self.disable(error)

    def _is_recomputed(self) -> bool:
        """Whether this is a checkpoint's second pass: it runs inside of the backward pass.

        The reentrant kind runs first without and then with gradients, the other one with them both
        times, so that gradients alone do not tell. Without PyTorch's number of the running
        backward pass, passes with gradients count, which is right for the reentrant kind.
        """
        if self._graph_task is None:
            return not self._torch.is_grad_enabled()
        return bool(self._graph_task() != -1)

    def _count(self, row: int, router: Router, tensor: Any) -> None:
        """Add to the row: column 1 + e counts expert e, the outer ones what is no expert (dropped
        tokens are often -1, experts that compute nothing come behind the others)."""
        counts = self._counts_on(tensor.device)
        if tensor.dtype == self._torch.bool:
            if tensor.shape[-1] != router.experts:
                raise ValueError(f"{router.name}: a map of {tensor.shape[-1]} experts")
            flat = tensor.reshape(-1, router.experts)
            counts[row, 1 : 1 + router.experts].add_(flat.sum(0, dtype=self._torch.int32))
        else:
            flat = tensor.reshape(-1).to(self._torch.int64)
            places = (flat + 1).clamp_(0, router.experts + 1)
            ones = self._ones[tensor.device].expand(places.shape[0])
            counts[row].scatter_add_(0, places, ones)
        self._devices[row] = tensor.device
        self._calls[row] += 1

    def _counts_on(self, device: Any) -> Any:
        counts = self._counts.get(device)
        if counts is None:
            torch, shape = self._torch, (len(self._routers), self._width)
            counts = torch.zeros(shape, dtype=torch.int64, device=device)
            self._counts[device] = counts
            self._ones[device] = torch.ones(1, dtype=torch.int64, device=device)
            is_pinned = device.type != "cpu"
            self._free[device] = deque(
                torch.zeros(shape, dtype=torch.int64, pin_memory=is_pinned) for _ in range(_BUFFERS)
            )
        return counts

    def _send(self) -> None:
        """Copy the step's counts towards the host, and begin anew."""
        calls, self._calls = self._calls, [0] * len(self._routers)
        for device, counts in self._counts.items():
            here = [count if self._devices[row] == device else 0 for row, count in enumerate(calls)]
            if not any(here):
                continue
            if self._free[device]:
                host = self._free[device].popleft()
                host.copy_(counts, non_blocking=True)
                self._pending.append(_Copy(self._step, here, device, host, self._event(device)))
            else:
                self.dropped += 1
            counts.zero_()  # behind the copy, in the same stream

    def _event(self, device: Any) -> Any:
        """What tells that a device's copy has arrived; None where it is there at once."""
        if device.type == "cpu":
            return None
        event = getattr(self._torch, device.type).Event()
        event.record()
        return event

    def _hand_over(self) -> None:
        """Give the writer what has arrived, oldest first, without waiting."""
        while self._pending and (self._pending[0].event is None or self._pending[0].event.query()):
            copy = self._pending.popleft()
            if self._writer is None or not self._writer.offer(copy):
                self._give_back(copy)

    def _give_back(self, copy: _Copy) -> None:
        self._free[copy.device].append(copy.host)

    def _lines(self, copy: _Copy) -> bytes:
        """One line for each router that ran. Runs in the writer's thread."""
        lines: list[str] = []
        for row, router in enumerate(self._routers):
            if count := copy.calls[row]:
                tokens = copy.host[row, 1 : 1 + router.experts].tolist()
                count_field = f', "n_micro": {count}' if not self._is_counter else ""
                lines.append(
                    f'{{"iter": {copy.step}, {self._heads[row]}{count_field}, "tpe": {tokens}}}\n'
                )
        return "".join(lines).encode()

    def leave_child(self) -> None:
        """In a process that was forked out of training: count and write nothing."""
        self.is_active = self._is_counting = False
        self._writer = None


def _close_at_exit(reference: weakref.ref[ExpertLoadRecorder]) -> None:
    recorder = reference()
    if recorder is not None:
        recorder.close()


def _leave_child(reference: weakref.ref[ExpertLoadRecorder]) -> None:
    recorder = reference()
    if recorder is not None:
        recorder.leave_child()
