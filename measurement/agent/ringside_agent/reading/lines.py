"""Where a step's time goes by line: of the functions that lead to ``step()``, in the last of the
compared steps.

Only these functions are traced, the script's or a framework's. A line's time includes all that it
calls. The device is synchronised where the next line begins, so work on a GPU counts for the line
that launched it. Functions of torch, Horovod and Python itself are not traced.
"""

from __future__ import annotations

import dis
import inspect
import linecache
import os
import sys
import sysconfig
from collections import Counter
from time import perf_counter_ns
from types import CodeType, FrameType, FunctionType
from typing import Any, Callable, Sequence

from ..users_lines import Place
from .batches import tensors_in
from .libraries import COLLECTIVE
from .script import Script
from .values import synchronize

TRACED_STEPS = 3
MAX_LINES = 20
"""Lines that are reported: those that call a collective, and then the longest."""
MAX_TEXT = 100
CLIPPING = {"clip_grad_norm_": "max_norm", "clip_grad_value_": "clip_value"}
"""Functions of ``torch.nn.utils``, and the argument that is the limit."""
COLLECTIVE_MODULES = ("torch.distributed", "horovod.torch")


class Lines:
    """The time of each line in some steps, the phases of the step that it contains, and the
    collectives that it calls.
    """

    def __init__(self, script: Script) -> None:
        self._recorder, self._script = script.recorder, script
        self._loops: set[CodeType] = set()
        self._frames: list[FrameType] = []
        self._collectives: set[CodeType] = set()
        self._others: tuple[str, ...] = ()
        """Folders of libraries whose functions are not traced."""
        self._noting: dict[CodeType, Callable[[FrameType], None]] = {}
        """What is called where a function is entered, by its code."""
        self._checkpointed = 0
        self.uses: dict[str, Any] = {}
        """Settings that the traced steps have shown: how gradients are clipped, and how many parts
        are checkpointed."""
        self._ns: Counter[Place] = Counter()
        """Time of the current step so far."""
        self._waited_ns: Counter[Place] = Counter()
        """How much of it was waiting for exchange."""
        self._steps: list[tuple[Counter[Place], Counter[Place]]] = []
        self._phases: dict[Place, set[str]] = {}
        self._calls: dict[Place, Counter[str]] = {}
        self._at: Place | None = None
        self._since = self._exchange_before = 0

    def begin(self) -> None:
        """Trace from here on, unless another tool does, such as a debugger.

        Called in the hook of an optimizer's step.
        """
        torch: Any = sys.modules["torch"]
        if sys.gettrace() is not None:
            return
        for module in map(sys.modules.get, COLLECTIVE_MODULES):
            named = (getattr(module, name) for name in filter(COLLECTIVE.match, dir(module)))
            self._collectives |= {code_of(each) for each in named if type(each) is FunctionType}
        self._noting = dict.fromkeys(self._collectives, self._note_collective)
        self._noting.update(
            {code_of(getattr(torch.nn.utils, name)): self._note_clipping for name in CLIPPING}
        )
        self._noting[code_of(torch.nn.Module.__call__)] = lambda _: self.mark("forward")
        if "torch.utils.checkpoint" in sys.modules:
            self._noting[code_of(torch.utils.checkpoint.checkpoint)] = self._note_checkpoint
        self._others = tuple(
            os.path.dirname(sys.modules[name].__file__ or "") + os.sep
            for name in ("torch", "horovod")
            if name in sys.modules
        )
        frame: Any = sys._getframe(1)
        while frame is not None:
            if is_traced(frame.f_code.co_filename, self._others):
                self._frames.append(frame)
                frame.f_trace = self._in_loop
            frame = frame.f_back
        self._loops = {frame.f_code for frame in self._frames}
        if self._frames:
            self.uses = {"step.clipping": "none", "step.checkpointed": 0}
            self._go_on_at(self._frames[0])
            sys.settrace(self._anywhere)

    def end_step(self) -> None:
        """End a step, in its optimizer's hook."""
        if self._frames:
            self._go_on_at(self._frames[0])
            self._steps.append((self._ns, self._waited_ns))
            self._ns, self._waited_ns = Counter(), Counter()
            self.uses["step.checkpointed"], self._checkpointed = self._checkpointed, 0
            if len(self._steps) == TRACED_STEPS:
                self.end()

    def end(self) -> None:
        """Stop tracing."""
        if sys.gettrace() == self._anywhere:
            sys.settrace(None)
        self._at = None
        for frame in self._frames:
            frame.f_trace = None
        self._frames = []

    def mark(self, phase: str) -> None:
        """Record that the current line contains this phase of the step, which is also timed by
        itself.
        """
        if self._at is not None:
            self._phases.setdefault(self._at, set()).add(phase)

    def report(self) -> list[dict[str, Any]]:
        """The fields of each ``LineUse``, in the order of the lines."""
        usual_ns, waited_ns = (usual([step[which] for step in self._steps]) for which in (0, 1))
        reported = sorted(usual_ns, key=lambda line: (line not in self._calls, -usual_ns[line]))[
            :MAX_LINES
        ]
        return [
            {
                "place": str(line),
                "text": linecache.getline(line.file, line.line).strip()[:MAX_TEXT],
                "seconds": usual_ns[line] / 1e9,
                "exchange_s": waited_ns[line] / 1e9,
                "phases": sorted(self._phases.get(line, ())),
                "collectives": {
                    name: count / len(self._steps)
                    for name, count in self._calls.get(line, {}).items()
                },
            }
            for line in sorted(reported)
        ]

    def _go_on_at(self, frame: FrameType | None) -> None:
        """Count time for this frame's line from now on."""
        if self._at is not None:
            synchronize(self._script.device)
            self._ns[self._at] += perf_counter_ns() - self._since
            self._waited_ns[self._at] += self._recorder.exchange - self._exchange_before
        self._at = Place(frame.f_code.co_filename, frame.f_lineno) if frame is not None else None
        self._since, self._exchange_before = perf_counter_ns(), self._recorder.exchange

    def _anywhere(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        """As Python calls it for each function that is entered."""
        code = frame.f_code
        if code in self._loops:
            self._go_on_at(frame)
            return self._in_loop
        if code in self._noting:
            self._noting[code](frame)
        return None

    def _in_loop(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        """As Python calls it for each line of a traced function, and where that returns."""
        if event == "line":
            self._go_on_at(frame)
        elif event == "return":
            back = frame.f_back
            while back is not None and back.f_code not in self._loops:
                back = back.f_back
            self._go_on_at(back)
        return self._in_loop

    def _note_checkpoint(self, _: FrameType) -> None:
        """Count a part of the model that is computed again in backward."""
        self._checkpointed += 1

    def _divides(self, frame: FrameType) -> bool:
        """Whether the innermost caller outside of libraries divides anything, perhaps a sum over
        ranks.
        """
        while frame.f_back is not None and not is_traced(frame.f_code.co_filename, self._others):
            frame = frame.f_back
        code = frame.f_code
        is_written = any(
            "TRUE_DIVIDE" in instruction.opname or instruction.argrepr in ("/", "/=")
            for instruction in dis.get_instructions(code)
        )
        return is_written or not {"div", "div_", "true_divide"}.isdisjoint(code.co_names)

    def _note_clipping(self, frame: FrameType) -> None:
        """Record to what gradients are clipped, and whether before their exchange, or while they
        are scaled.
        """
        name = frame.f_code.co_name
        # Horovod has not waited
        is_early = any(
            getattr(optimizer, "_handles", None) for optimizer in self._script.optimizers
        )
        scaler = self._recorder.scaler
        states = getattr(scaler, "_per_optimizer_states", None)
        is_scaled = (
            states is not None
            and scaler.is_enabled()
            and "UNSCALED" not in {state["stage"].name for state in states.values()}
        )
        early = "before the exchange: " if is_early else "before unscale_(): " if is_scaled else ""
        self.uses["step.clipping"] = f"{early}{name} {frame.f_locals.get(CLIPPING[name])}"

    def _note_collective(self, frame: FrameType) -> None:
        """Count a collective that the script calls.

        Collectives within another one, or of gradients, are not counted.
        """
        if self._recorder.in_backward or self._recorder.depth:
            return
        caller = frame.f_back
        while caller is not None and caller.f_code not in self._loops:
            if caller.f_code in self._collectives:
                return
            caller = caller.f_back
        if self._at is not None:
            arguments = frame.f_locals
            tensors = tensors_in([arguments.get("tensor"), arguments.get("tensors")])
            size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            how = " (sum)" if is_sum(arguments) and not self._divides(frame) else ""
            call = f"{frame.f_code.co_name}{how}{' of ' + str(size) + ' B' if size else ''}"
            self._calls.setdefault(self._at, Counter())[call] += 1


def is_sum(arguments: dict[str, Any]) -> bool:
    """Whether a collective with these arguments adds up what ranks have."""
    op, horovods = arguments.get("op"), getattr(sys.modules.get("horovod.torch"), "Sum", None)
    return (
        str(op).endswith("SUM")
        or arguments.get("average") is False
        or (type(op) is int and op == horovods)
    )


def usual(steps: Sequence[Counter[Place]]) -> Counter[Place]:
    """The median of each line over some steps."""
    lines = {line for step in steps for line in step}
    return Counter({line: sorted(step[line] for step in steps)[len(steps) // 2] for line in lines})


def code_of(function: Any) -> CodeType:
    """The code of a function without its decorators."""
    code: CodeType = inspect.unwrap(function).__code__
    return code


def is_traced(file: str, others: tuple[str, ...]) -> bool:
    """Whether functions of this file are traced: it is not in the folders ``others``, and neither
    Python's nor ours.
    """
    python = sysconfig.get_path("stdlib") + os.sep
    is_of_python = file.startswith(("<", python)) and not (
        "site-packages" in file or "dist-packages" in file
    )
    agent_folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
    return not is_of_python and not file.startswith((agent_folder, *others))
