"""What a compiled program does, read from its optimised HLO text: FLOPs, bytes and collectives.

In: ``compiled.as_text()`` of one device's program. Out: :class:`Work`, with the bodies of loops taken as
often as they run. XLA's own ``cost_analysis`` counts a body once and knows nothing of Pallas kernels, so
the counting is done here, by these rules:

* FLOPs: products (``convolution`` and ``dot``, two a multiply-add, taps that fall on padding left out) and
  splash attention's kernels (the causal half of the square). Element-wise work is not counted.
* bytes: what each instruction outside of a fusion reads from and writes to HBM; what lies in on-chip
  memory costs nothing. A slice reads the slice, an update in place writes the update.
* collectives: the bytes that one device must send, with the groups of devices that take part.

A loop's trip count is the constant that its condition compares with, starting at 0 in steps of 1, which is
what ``lax.scan`` and the compiler's own pipelined products make; another loop is taken once and named in
``unknown_loops``. Where a condition has an early exit (decoding), it is the most that the loop can run.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import defaultdict
from functools import cached_property

BYTES = {
    "pred": 1, "s4": 0.5, "u4": 0.5, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2,
    "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8, "c64": 8,
}  # fmt: skip
COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
FREE = {
    "parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "partition-id",
    "replica-id", "iota", "opt-barrier", "async-done", "async-update", "copy-done",
}  # fmt: skip
# matrix products of one T x T square in each of splash attention's kernels
KERNEL_PRODUCTS = {"fwd": 2, "dq": 3, "dkv": 4}
_SHAPE = re.compile(r"([a-z]+\d*)\[([\d,]*)\](\{[^}]*\})?")
_NAME = re.compile(r"%([\w.\-]+)")


@dataclasses.dataclass(frozen=True)
class Collective:
    """One kind of exchange in one program, all of its runs together.

    Attributes:
        sent: bytes that a device must send for all runs, on a ring: (n - 1)/n of the whole for a gather
            or a scatter among n, twice that for a reduction of everything, all for a permute.
        groups: who takes part, as text of the HLO.
    """

    kind: str
    groups: str
    runs: float
    sent: float


@dataclasses.dataclass
class Work:
    """What one device does in one run of a program."""

    flops: float = 0.0
    kernel_flops: float = 0.0  # of ``flops``, those in attention kernels
    bytes: float = 0.0
    collectives: dict[tuple[str, str], Collective] = dataclasses.field(default_factory=dict)
    unknown_loops: list[str] = dataclasses.field(default_factory=list)

    def add(self, other: Work, times: float = 1.0) -> None:
        self.flops += times * other.flops
        self.kernel_flops += times * other.kernel_flops
        self.bytes += times * other.bytes
        for each in other.collectives.values():
            self.exchange(each.kind, each.groups, times * each.runs, times * each.sent)
        self.unknown_loops += other.unknown_loops

    def exchange(self, kind: str, groups: str, runs: float, sent: float) -> None:
        old = self.collectives.get((kind, groups), Collective(kind, groups, 0.0, 0.0))
        self.collectives[kind, groups] = Collective(kind, groups, old.runs + runs, old.sent + sent)


@dataclasses.dataclass(frozen=True)
class Instruction:
    name: str
    type: str
    op: str
    operands: tuple[str, ...]
    text: str  # what stands in the parentheses: a parameter's number, a constant's value
    attributes: str
    root: bool

    @cached_property
    def shapes(self) -> list[tuple[int, ...]]:
        return [tuple(map(int, filter(None, dims.split(",")))) for _, dims, _ in _SHAPE.findall(self.type)]

    def called(self, key: str) -> str | None:
        found = re.search(rf"\b{key}=%([\w.\-]+)", self.attributes)
        return found[1] if found else None


def size(type_: str, hbm_only: bool = False) -> float:
    """Bytes of a type, tuples summed; with ``hbm_only`` what lies in other memory counts nothing."""
    total = 0.0
    for dtype, dims, layout in _SHAPE.findall(type_):
        if not (hbm_only and "S(" in layout):
            total += BYTES.get(dtype, 0) * math.prod(map(int, filter(None, dims.split(","))))
    return total


def _closing(text: str, start: int) -> int:
    """Index of the parenthesis that closes the one at ``start``."""
    depth = 0
    for index in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[index], 0)
        if depth == 0:
            return index
    return len(text) - 1


def parse(text: str) -> tuple[dict[str, list[Instruction]], str]:
    """Computations by name, and the name of the entry."""
    computations: dict[str, list[Instruction]] = {}
    current: list[Instruction] | None = None
    entry = ""
    for line in text.splitlines():
        if current is None:
            head = re.match(r"(ENTRY )?%([\w.\-]+) \(.*\{$", line)
            if head:
                current = computations[head[2]] = []
                entry = head[2] if head[1] else entry
        elif line == "}":
            current = None
        elif re.match(r"\s+(ROOT )?%[\w.\-]+ = ", line):  # a kernel's metadata may go on over lines
            current.append(_instruction(line))
    if not entry:
        raise ValueError("no ENTRY computation: this is no text of a compiled program")
    return computations, entry


def _instruction(line: str) -> Instruction:
    left, _, right = line.strip().partition(" = ")
    end = _closing(right, 0) + 1 if right.startswith("(") else right.index(" ")
    type_, rest = right[:end], right[end:].lstrip()
    opening = rest.index("(")
    closing = _closing(rest, opening)
    inside = rest[opening + 1 : closing]
    name = left.removeprefix("ROOT ").lstrip("%")
    root = left.startswith("ROOT ")
    operands = tuple(_NAME.findall(inside))
    return Instruction(name, type_, rest[:opening], operands, inside, rest[closing + 1 :], root)


def work_of(text: str) -> Work:
    """Count what one run of a compiled program does on one device."""
    computations, entry = parse(text)
    return _Counter(computations).count(entry)


class _Counter:
    """Counts computations, each once, callers taking the result as often as they run it."""

    def __init__(self, computations: dict[str, list[Instruction]]):
        self.computations = computations
        self._done: dict[tuple[str, bool], Work] = {}

    def count(self, name: str, fused: bool = False) -> Work:
        """``fused``: nothing inside touches HBM, the caller counts the bytes."""
        if (name, fused) not in self._done:
            work = Work()
            known = {each.name: each for each in self.computations[name]}
            for each in self.computations[name]:
                self._one(work, each, known, fused)
            self._done[name, fused] = work
        return self._done[name, fused]

    def _one(self, work: Work, each: Instruction, known: dict[str, Instruction], fused: bool) -> None:
        if each.op == "while":
            self._loop(work, each)
            return
        kind = each.op.removesuffix("-start")
        if kind in COLLECTIVES:
            self._exchange(work, each, kind, known)
        elif each.op in ("convolution", "dot"):
            work.flops += product_flops(each, [known[name] for name in each.operands])
        elif each.op == "custom-call":
            flops = kernel_flops(each, known)
            work.flops, work.kernel_flops = work.flops + flops, work.kernel_flops + flops
        elif each.op == "conditional":
            branches = re.findall(r"(?:true|false)_computation=%([\w.\-]+)", each.attributes)
            listed = re.search(r"branch_computations=\{([^}]*)\}", each.attributes)
            branches += _NAME.findall(listed[1]) if listed else []
            works = [self.count(name) for name in branches]
            work.add(max(works, key=lambda w: w.flops + w.bytes))
        elif called := each.called("calls") or (each.op == "call" and each.called("to_apply")):
            inner = self.count(called, fused or each.op == "fusion")
            scatter = called.startswith("all-reduce-scatter")
            self._add_called(work, inner, scatter)
        if not fused:
            work.bytes += self._bytes(each, known)

    def _add_called(self, work: Work, inner: Work, scatter: bool) -> None:
        if not scatter:
            work.add(inner)
            return
        for each in inner.collectives.values():  # all-reduce and slice in one: half of a reduction's bytes
            work.exchange("reduce-scatter", each.groups, each.runs, each.sent / 2)

    def _loop(self, work: Work, each: Instruction) -> None:
        condition, body = each.called("condition"), each.called("body")
        assert condition is not None
        assert body is not None
        trips = trip_count(self.computations, condition)
        if trips is None:
            work.unknown_loops.append(each.name)
        work.add(self.count(body), 1 if trips is None else trips)

    def _exchange(self, work: Work, each: Instruction, kind: str, known: dict[str, Instruction]) -> None:
        given = sum(size(known[name].type) for name in each.operands)
        if kind == "collective-permute":
            pairs = re.search(r"source_target_pairs=(\{\{.*?\}\})", each.attributes)
            work.exchange(kind, pairs[1] if pairs else "", 1, given)
            return
        found = re.search(
            r"replica_groups=(\{\{.*?\}\}|\{\}|\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?|mesh\[.*?\] \{.*?\})",
            each.attributes,
        )
        groups = found[1] if found else ""
        n = len(first_group(groups))
        if n > 1:
            whole = given * n if kind == "all-gather" else given
            work.exchange(kind, groups, 1, whole * (n - 1) / n * (2 if kind == "all-reduce" else 1))

    # --- bytes ---

    def _bytes(self, each: Instruction, known: dict[str, Instruction]) -> float:
        if each.op in FREE or each.op.endswith("-done") or each.op in ("while", "conditional", "call"):
            return 0.0
        if each.op == "copy-start":  # (destination, source, flag)
            return size(each.type, True)
        if each.op == "async-start":
            return 0.0  # its computation is counted
        out = size(each.type, True)
        inputs = [size(known[name].type, True) for name in each.operands]
        if each.op in ("dynamic-slice", "slice", "gather"):
            return out + min(out, inputs[0])
        if each.op == "dynamic-update-slice":
            return 2 * inputs[1]
        if each.op == "custom-call" and 'custom_call_target="tpu_custom_call"' not in each.attributes:
            return 0.0
        called = each.called("calls") if each.op == "fusion" else None
        if called is None:
            return out + sum(inputs)
        return self._fusion_bytes(called, each, known)

    def _fusion_bytes(self, called: str, each: Instruction, known: dict[str, Instruction]) -> float:
        body = self.computations[called]
        users: dict[str, list[tuple[Instruction, int]]] = defaultdict(list)
        for inner in body:
            for place, name in enumerate(inner.operands):
                users[name].append((inner, place))
        total = _written(each, body)
        for parameter in body:
            if parameter.op == "parameter":
                whole = size(known[each.operands[int(parameter.text)]].type, True)
                total += min(whole, _read(parameter, users)) if whole else 0.0
        return total


def _read(value: Instruction, users: dict[str, list[tuple[Instruction, int]]]) -> float:
    """Bytes of a fused computation's input that are read: slices only where only slices are taken."""
    total = 0.0
    for user, place in users[value.name]:
        if user.op in ("dynamic-slice", "slice", "gather") and place == 0:
            total += size(user.type)
        elif user.op == "bitcast":
            total += _read(user, users)
        elif not (user.op == "dynamic-update-slice" and place == 0):  # changed in place
            return math.inf
    return total


def _written(each: Instruction, body: list[Instruction]) -> float:
    """Bytes of a fusion's result that are written: the update only where a slice is updated in place."""
    known = {inner.name: inner for inner in body}
    out = size(each.type, True)
    root = next(inner for inner in body if inner.root)
    roots = [known[name] for name in root.operands] if root.op == "tuple" else [root]
    for result in roots:
        while result.op == "bitcast" and result.operands[0] in known:
            result = known[result.operands[0]]
        if result.op == "dynamic-update-slice":
            out -= size(result.type) - size(known[result.operands[1]].type)
    return max(out, 0.0)


def trip_count(computations: dict[str, list[Instruction]], condition: str) -> int | None:
    """The constant that a loop's condition compares its counter with; None where none is found."""
    known = {each.name: each for each in computations[condition]}
    bounds = []
    for each in known.values():
        if each.op == "compare" and "direction=LT" in each.attributes:
            bound = known.get(each.operands[1])
            if bound is not None and bound.op == "constant" and bound.text.isdigit():
                bounds.append(int(bound.text))
        elif each.op == "fusion" and (called := each.called("calls")):
            # the constant is passed in, or stands inside
            constants = [known[name].text for name in each.operands if known[name].op == "constant"]
            inner = computations[called]
            compares = [x for x in inner if x.op == "compare" and "direction=LT" in x.attributes]
            constants += [x.text for x in inner if x.op == "constant"] if compares else []
            bounds += [int(text) for text in constants if compares and text.isdigit() and int(text) > 0]
    return max(bounds) if bounds else None


def product_flops(each: Instruction, operands: list[Instruction]) -> float:
    """Two a multiply-add of a ``dot`` or ``convolution``."""
    out = math.prod(each.shapes[0])
    left, right = operands[0].shapes[0], operands[1].shapes[0]
    if each.op == "dot":
        contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", each.attributes)
        dims = filter(None, contracted[1].split(",")) if contracted else ()
        return 2.0 * out * math.prod(left[int(d)] for d in dims)
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", each.attributes)
    assert labels is not None, each
    lhs, rhs, result = labels.groups()
    window = re.search(r"window=\{([^}]*)\}", each.attributes)
    fields = dict(item.split("=") for item in window[1].split()) if window else {}
    flops = 2.0 * out * right[rhs.index("i")]
    for axis in sorted(set(result) - {"b", "f"}):
        n, m = left[lhs.index(axis)], each.shapes[0][result.index(axis)]
        flops *= _taps(n, m, right[rhs.index(axis)], fields, int(axis)) / m
    groups = re.search(r"batch_group_count=(\d+)", each.attributes)
    return flops / (int(groups[1]) if groups else 1)


def _taps(n: int, m: int, taps: int, fields: dict[str, str], axis: int) -> int:
    """Pairs of output position and tap that meet a real input, of ``n`` inputs, ``m`` outputs."""

    def field(name: str, default: str) -> str:
        return fields[name].split("x")[axis] if name in fields else default

    stride, right = int(field("stride", "1")), int(field("rhs_dilate", "1"))
    spread, low = int(field("lhs_dilate", "1")), int(field("pad", "0_0").split("_")[0])
    count = 0
    for tap in range(taps):
        # input position o * stride + tap * right - low lies in [0, (n - 1) * spread] on a multiple of spread
        shift = tap * right - low
        if spread == 1:
            first = max(0, -(shift // stride) if shift < 0 else 0)
            last = min(m - 1, (n - 1 - shift) // stride)
            count += max(0, last - first + 1)
        else:
            places = (o * stride + shift for o in range(m))
            count += sum(p >= 0 and p % spread == 0 and p // spread < n for p in places)
    return count


def kernel_flops(each: Instruction, known: dict[str, Instruction]) -> float:
    """FLOPs of a splash attention kernel: queries [H, T, h] against keys [K, S, h], below the diagonal.

    With queries cut over devices (T < S) it is the work of the last part, which sees the most keys: all
    devices wait for it.
    """
    which = next((n for n in ("dkv", "dq", "fwd") if "splash" in each.name and n in each.name), None)
    if which is None:
        return 0.0
    cubes: list[tuple[int, ...]] = []
    for dtype in ("bf16", "f32"):  # statistics are float32 [H, 1, T], masks are integers
        arrays = [known[name] for name in each.operands if known[name].type.startswith(dtype)]
        cubes = cubes or [x.shapes[0] for x in arrays if len(x.shapes[0]) == 3 and x.shapes[0][1] > 1]
    queries = max(cubes, key=lambda shape: (shape[0], -shape[1]))  # at least as many heads, no more tokens
    length = max(shape[1] for shape in cubes)
    seen = length - queries[1] / 2  # on average, by the last part's queries
    return KERNEL_PRODUCTS[which] * 2.0 * queries[0] * queries[1] * seen * queries[2]


def first_group(groups: str) -> list[int]:
    """Devices of the first group of a collective; [] when the text can't be read."""
    all_ = device_groups(groups)
    return all_[0] if all_ else []


def device_groups(groups: str) -> list[list[int]]:
    """Groups of devices, from any of the three ways in which HLO writes them."""
    import numpy as np

    if groups.startswith("{{"):
        return [[int(n) for n in part.split(",")] for part in groups[2:-2].split("},{")]
    iota = re.fullmatch(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", groups)
    if iota:
        shape, dims, order = (tuple(map(int, x.split(","))) if x else () for x in iota.groups())
        ids = np.arange(math.prod(dims)).reshape(dims)
        return (ids.transpose(order) if order else ids).reshape(shape).tolist()
    mesh = re.fullmatch(r"mesh\[(.*?)\](?:, device_ids=\S+)? \{(.*?)\}", groups)
    if mesh:
        axes = {name: int(n) for name, n in re.findall(r"'([^']+)'=(\d+)", mesh[1])}
        chosen = re.findall(r"'([^']+)'", mesh[2])
        if not set(chosen) <= set(axes):
            return []
        ids = np.arange(math.prod(axes.values())).reshape(tuple(axes.values()))
        mine = [list(axes).index(name) for name in chosen]
        rest = [n for n in range(len(axes)) if n not in mine]
        return ids.transpose(rest + mine).reshape(-1, math.prod(axes[name] for name in chosen)).tolist()
    return []
