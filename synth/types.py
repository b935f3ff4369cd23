"""The records that reach the disk, in the order in which they flow.

Theme -> Database -> Environment (= Database + Tools) -> Task (+ Verifier)
      -> Trajectory (+ Verdict) -> ArenaReport -> Diagnosis -> SynthesisRequest

Every record is frozen, refuses unknown fields and carries ``schema_version``. A record
is written as one JSON object (a line of JSONL, or a file of its own); readers of older
versions live in :func:`upgrade`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from synth.errors import CallerError

SCHEMA_VERSION = 1

MEND = "regenerate the file with this version, or restore it from its run folder"


class Record(BaseModel):
    """Base of all records on disk: frozen, strict about names, versioned."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> str:
        """One line of JSON, fields in declaration order."""
        return self.model_dump_json()

    @classmethod
    def from_json(cls, text: str | bytes, *, where: str = "<memory>") -> Self:
        """Read one record.

        Args:
            text: the JSON text.
            where: file name and line, for the message.

        Raises:
            CallerError: the text is no JSON, has unknown or missing fields, or a newer version.
        """
        try:
            record = cls.model_validate_json(text)
        except ValidationError as err:
            first = err.errors()[0]
            field = ".".join(str(part) for part in first["loc"]) or "(whole record)"
            raise CallerError(
                f"{where}: not a valid {cls.__name__}: field {field}: {first['msg']}; {MEND}"
            ) from None
        if record.schema_version > SCHEMA_VERSION:
            raise CallerError(
                f"{where}: {cls.__name__} has schema_version {record.schema_version}, "
                f"this program reads up to {SCHEMA_VERSION}; upgrade agent-world"
            )
        return record


# --- themes and databases ---------------------------------------------------------------


class Theme(Record):
    """What an environment is about, and where the idea comes from."""

    id: str
    source: Literal["mcp", "tool_doc", "prd"]
    name: str
    description: str
    spec: dict[str, Any] = Field(default_factory=dict)
    license: str


class Provenance(Record):
    """Where the rows of one table or file come from."""

    target: str  # table name, or file path below state/
    origin: str  # package:path, URL, or "derived" / "simulated" by an author
    package: str | None = None
    version: str | None = None
    license: str
    sha256: str  # of the source bytes; of the canonical rows when derived
    retrieved: str  # ISO date
    note: str = ""  # sampling, cleaning, derivation


class Column(Record):
    """One column, with the words people use for it."""

    name: str
    type: Literal["integer", "real", "text"]
    role: Literal["key", "name", "category", "measure", "date", "ref", "status", "text"]
    label: str  # human words, lower case, no underscores: "elevation in feet"
    nullable: bool = False
    values: tuple[str, ...] | None = None  # closed value set of a category or status
    minted: bool = False  # filled by ctx.new_id() or ctx.now(): ignored when states are compared


class ForeignKey(Record):
    column: str
    table: str
    ref_column: str


class Table(Record):
    """Schema of one table. Rows live in the database, not here."""

    name: str
    singular: str  # human words: "airport"
    plural: str  # "airports"
    kind: Literal["mined", "dimension", "aggregate", "ledger", "constraint", "audit"]
    columns: tuple[Column, ...]
    primary_key: str
    foreign_keys: tuple[ForeignKey, ...] = ()
    description: str = ""

    def column(self, name: str) -> Column:
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(f"{self.name} has no column {name}")

    def by_role(self, *roles: str) -> list[Column]:
        return [c for c in self.columns if c.role in roles]


class Database(Record):
    """A mined or complexified database: schema, rows and provenance (the paper's D)."""

    theme_id: str
    tables: tuple[Table, ...]
    rows: dict[str, list[list[Any]]]  # table name -> rows, values in column order
    provenance: tuple[Provenance, ...]
    rounds: int = 0  # complexification rounds done
    log: tuple[str, ...] = ()  # what each round added, and why

    def table(self, name: str) -> Table:
        for table in self.tables:
            if table.name == name:
                return table
        raise KeyError(f"no table {name}")

    def records(self, name: str) -> list[dict[str, Any]]:
        """Rows of a table as dictionaries, in stored order."""
        names = [c.name for c in self.table(name).columns]
        return [dict(zip(names, row, strict=True)) for row in self.rows[name]]


# --- tools and environments ---------------------------------------------------------------


class ToolStep(Record):
    tool: str
    arguments: dict[str, Any]


class ToolCase(Record):
    """One unit test of a tool."""

    arguments: dict[str, Any]
    expect: Any = None  # the result; ignored when error is set
    error: str | None = None  # the expected ToolError code
    changes: dict[str, int] = Field(default_factory=dict)  # table -> rows added + changed + removed
    before: tuple[ToolStep, ...] = ()  # calls made first, in the same episode; changes are since then

    @model_serializer(mode="wrap")
    def _short(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without ``before`` where there is none: older bundles keep their bytes and digests."""
        values = write(self)
        if not self.before:
            values.pop("before", None)
        return values


class Tool(Record):
    """One tool: an MCP Tool object, its code and its tests.

    ``meta`` becomes ``_meta`` in tools.json. The keys that the stages use:
    ``kind`` (search, get, list, aggregate, rank, create, update, cancel, transfer, rules),
    ``table`` (the table it acts on), ``inputs`` {parameter: "table.column"} and
    ``outputs`` {path: "table.column"} with paths such as ``$.items[].airport_id``.
    """

    name: str
    description: str
    input_schema: dict[str, Any]
    output_schema: dict[str, Any]
    read_only: bool
    code: str
    cases: tuple[ToolCase, ...] = ()
    meta: dict[str, Any] = Field(default_factory=dict)


class Link(Record):
    """Output path of one tool that can fill a parameter of another."""

    path: str
    parameter: str


class Edge(Record):
    source: str
    target: str
    kind: Literal["strong", "weak", "independent"]
    weight: Literal[3, 2, 1]
    links: tuple[Link, ...] = ()


class ToolGraph(Record):
    nodes: tuple[str, ...]
    edges: tuple[Edge, ...]


class Manifest(Record):
    """manifest.json of an environment bundle."""

    env_id: str
    theme: Theme
    taxonomy: tuple[str, ...] = ()  # first level, second level
    license: str
    parent_digest: str | None = None
    digest: str  # of state, tools, cases and schema; what tasks refer to
    state_digest: str  # canonical digest of the pristine state
    files: dict[str, str] = Field(default_factory=dict)  # relative path -> sha256
    generator: dict[str, Any] = Field(default_factory=dict)
    clock: str = "2026-01-05T09:00:00Z"  # where every episode's clock starts
    audit_tables: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()


class Environment(Record):
    """An environment in memory: what :mod:`synth.env.bundle` writes and reads (e = (D, F))."""

    env_id: str
    theme: Theme
    database: Database
    tools: tuple[Tool, ...]
    graph: ToolGraph | None = None
    taxonomy: tuple[str, ...] = ()
    generator: dict[str, Any] = Field(default_factory=dict)


# --- tasks and verification -----------------------------------------------------------------


class Criterion(Record):
    """One line of a rubric.

    ``field`` is ``answer``, ``answer[0]``, ``answer.name`` or ``state``.
    check: ``equals`` (canonical JSON), ``text`` (case and space folded), ``number``
    (within ``tolerance``, relative above 1), ``set`` (order ignored),
    ``diff`` (field ``state``: the diff to the initial state equals ``expected``, minted columns apart).
    """

    field: str
    check: Literal["equals", "text", "number", "set", "diff"]
    expected: Any = None
    tolerance: float = 0.0
    how: Literal["program", "judge"] = "program"


class Rubric(Record):
    kind: Literal["rubric"] = "rubric"
    criteria: tuple[Criterion, ...]


class Program(Record):
    """Verifier code: ``def verify(initial, final, answer) -> list[(name, passed, detail)]``."""

    kind: Literal["program"] = "program"
    code: str


Verifier = Annotated[Rubric | Program, Field(discriminator="kind")]


class Difficulty(Record):
    steps: int  # tool calls of the gold solution
    tools: int  # distinct tools
    writes: int = 0  # calls of write tools
    branch: bool = False
    loop: bool = False
    aggregate: bool = False


class Task(Record):
    id: str
    env_id: str
    env_digest: str
    route: Literal["graph", "program"]
    instruction: str
    reference_answer: Any
    verifier: Verifier
    chain: tuple[ToolStep, ...] = ()  # the calls of the gold solution, in order
    solution: str | None = None  # program route: the source
    difficulty: Difficulty
    changes_state: bool
    pattern: str  # which shape of chain or program it is, for diagnosis
    seed: int  # clock, ids and rng of its episodes
    solve_rate: float | None = None
    solver: str | None = None
    guide_id: str | None = None


class Check(Record):
    name: str
    passed: bool
    detail: str = ""


class Verdict(Record):
    """Outcome of a verifier. ``error`` is set only when the infrastructure failed."""

    passed: bool
    checks: tuple[Check, ...] = ()
    error: str | None = None

    @property
    def reward(self) -> float | None:
        """1.0, 0.0, or None when the infrastructure failed (a broken sandbox is not a wrong answer)."""
        if self.error is not None:
            return None
        return 1.0 if self.passed else 0.0


# --- trajectories -----------------------------------------------------------------------------


class Turn(Record):
    """One message of an episode. ``start`` and ``end`` are offsets into the trajectory's token_ids."""

    role: Literal["prompt", "assistant", "tool"]
    text: str
    start: int
    end: int
    policy_version: int | None = None  # assistant turns only: the oldest version that drew one of its tokens
    # (version, how many tokens), in order, where the weights changed within the turn; else empty
    version_runs: tuple[tuple[int, int], ...] = ()
    call: ToolStep | None = None  # the parsed tool call of an assistant turn
    error: str | None = None  # parse error, or the tool's error code
    fault: Literal["caller", "environment", "infrastructure"] | None = None


FinishReason = Literal["answer", "length", "turns", "error"]


class Trajectory(Record):
    """One episode, tokens in and tokens out; the three per-token lists have equal length T."""

    task_id: str
    env_id: str
    sample: int  # index in the group
    seed: int
    turns: tuple[Turn, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]  # 0.0 where loss_mask is 0
    loss_mask: tuple[int, ...]  # 1 on sampled tokens
    finish_reason: FinishReason
    answer: Any = None
    verdict: Verdict | None = None
    error: str | None = None


# --- arena --------------------------------------------------------------------------------------


class Rate(Record):
    """A pass rate with its 95% interval (bootstrap over tasks)."""

    passed: float
    low: float
    high: float
    tasks: int
    episodes: int


class ArenaReport(Record):
    round: str
    overall: Rate
    per_class: dict[str, Rate]
    per_environment: dict[str, Rate]
    per_pattern: dict[str, Rate] = Field(default_factory=dict)
    pass_at_k: dict[str, float] = Field(default_factory=dict)
    finish_reasons: dict[str, int] = Field(default_factory=dict)
    failures: tuple[str, ...] = ()  # "task_id#sample" of failed episodes
    infrastructure_errors: int = 0


class Guide(Record):
    """What new tasks should be like; the task stages obey it."""

    id: str
    text: str
    tool_kinds: tuple[str, ...] = ()  # at least one tool of these kinds
    min_steps: int = 1
    max_steps: int = 4
    changes_state: bool | None = None
    branch: bool | None = None
    patterns: tuple[str, ...] = ()


class Weakness(Record):
    env_id: str
    taxonomy: tuple[str, ...]
    pass_rate: float
    error_kinds: dict[str, int]
    evidence: tuple[str, ...]  # "task_id#sample: what happened"
    guides: tuple[Guide, ...]
    why: str = ""  # what the agent does not master, in a model's words; empty when only counted


class Diagnosis(Record):
    round: str
    weaknesses: tuple[Weakness, ...]  # weakest first
    author: str = "offline"  # who wrote ranking and guides: counted, or llm:<model>


class SynthesisRequest(Record):
    """What the arena asks of synthesis: the file through which the loop closes."""

    env_id: str  # a training environment of the weak one's class, never a measured one
    because_of: str  # the weak environment
    guide: Guide
    count: int
    complexify: bool = False
