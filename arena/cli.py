"""The command line: ``agent-world COMMAND``.

Each command only reads its options here; its body is imported when it runs, so that ``--help`` is quick and
loads neither JAX nor Beam. Exit codes: 0 done, 1 what was measured fell short, 2 the caller's mistake
(one line on standard error), 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from arena.cli_bench import bench
from arena.cli_costs import costs
from arena.cli_env import mcp, publish
from arena.cli_import import import_app
from arena.cli_judge import judge
from arena.cli_model import export, plan
from arena.cli_options import (
    Author,
    AuthorOption,
    Json,
    LlmFile,
    Run,
    Seed,
    Tracker,
    UsageError,
    author_name,
)
from arena.cli_quality import mutate
from arena.cli_serve import serve
from arena.cli_sft import sft
from arena.cli_synth import PASS_THROUGH, synth_app, tasks
from arena.cli_themes import themes_app
from model.huge_pages import with_huge_pages
from synth.errors import AgentWorldError, CallerError

app = typer.Typer(
    name="agent-world",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    help="Grow tool-using agents: environments from real data, verified tasks, GRPO, and an arena that "
    "closes the loop.\n\n\b\nExamples, the whole loop and then its parts in order:\n"
    "  agent-world demo                       all of it, in minutes\n"
    "  agent-world themes                     what environments can be about\n"
    "  agent-world synth complexify RUN       databases from real tables\n"
    "  agent-world synth tools RUN            environments: tools over them, tested in the sandbox\n"
    "  agent-world check RUN/bundles/*        every gate over every environment\n"
    "  agent-world tasks RUN                  verified tasks\n"
    "  agent-world mutate RUN                 wrong outcomes: which of them do the verifiers refuse\n"
    "  agent-world judge --llm FILE           a judge of sentences, and how often it errs\n"
    "  agent-world costs --llm FILE           what a model has cost, and what a run would\n"
    "  agent-world mcp RUN/bundles/NAME       an environment as a real MCP server\n"
    "  agent-world import mcp -- COMMAND      a real MCP server as an environment\n"
    "  agent-world sft RUN                    a cold start: learn from the calls that solve them\n"
    "  agent-world train RUN                  GRPO on them\n"
    "  agent-world arena RUN                  how well a policy does where it never trained\n"
    "  agent-world export RUN/train/NAME OUT  a policy as a Hugging Face folder\n"
    "  agent-world plan CONFIG                does it fit a TPU slice, and how fast could it be\n"
    "  agent-world evolve RUN                 what went wrong, and which tasks would help\n"
    "  agent-world serve POLICY               a policy behind OpenAI's HTTP API\n"
    "  agent-world view RUN                   look at all of it\n"
    "  agent-world bench                      the benchmarks: two sides in one run, and their ratio",
)
app.add_typer(themes_app, name="themes")
app.add_typer(synth_app, name="synth")
app.command("tasks", context_settings=PASS_THROUGH)(tasks)
app.command("mutate")(mutate)
app.command("judge")(judge)
app.command("costs")(costs)
app.command("mcp")(mcp)
app.command("publish")(publish)
app.command("serve")(serve)
app.command("sft")(sft)
app.add_typer(import_app, name="import")
app.command("plan")(plan)
app.command("export")(export)
app.command("bench", context_settings={**PASS_THROUGH, "allow_interspersed_args": False})(bench)

COMPUTES = ("demo", "pretrain", "sft", "train", "arena", "serve")  # commands that run a model
LOCAL_ONLY = ("demo", "pretrain", "import", "themes", "plan")


@app.command()
def demo(
    run: Annotated[Path, typer.Option("--run", help="The run folder; a killed demo goes on there.")] = Path(
        "runs/demo"
    ),
    seed: Seed = 0,
    policy: Annotated[
        Path | None, typer.Option(help="Where to start: a policy folder; without it the shipped base policy.")
    ] = None,
    themes: Annotated[
        int | None, typer.Option(min=2, help="Only so many themes of each class: quicker, and noisier.")
    ] = None,
) -> int:
    """The whole loop, end to end.

    Themes, databases, tools, tasks, training, arena, diagnosis, targeted synthesis, training, arena again.
    Ends with a table and an HTML report.

    \b
    Examples:
      agent-world demo
      agent-world demo --run runs/seed1 --seed 1
    """
    from arena.demo import DemoConfig, run_demo

    return run_demo(run, DemoConfig(seed=seed, themes=themes), policy)


@app.command()
def pretrain(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Where corpus, checkpoints and policy go.")],
    environments: Annotated[int, typer.Option(min=1, help="Environments a theme.")] = 5,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps of up to 4,096 tokens.")] = 2300,
    start_from: Annotated[
        Path | None, typer.Option(help="Go on from this policy folder instead of a fresh start.")
    ] = None,
    seed: Seed = 0,
) -> int:
    """Make a base policy.

    Synthesizes environments from the themes that are never measured on, replays their tasks in the sandbox,
    learns a tokenizer and trains a small model with a growing tool list. A killed run goes on.

    \b
    Examples:
      agent-world pretrain runs/base
      agent-world pretrain runs/quick --environments 1 --steps 50
      agent-world pretrain runs/longer --start-from runs/base/policy --environments 14 --steps 2000
    """
    from rl.pretrain import run_pretrain

    return run_pretrain(out, environments=environments, steps=steps, seed=seed, start_from=start_from)


@app.command()
def check(
    bundles: Annotated[list[Path], typer.Argument(metavar="BUNDLE...", help="Environment bundles.")],
    tasks: Annotated[Path | None, typer.Option(help="Tasks over these bundles (JSONL), checked too.")] = None,
    json: Json = False,
) -> int:
    """Run every gate over bundles and tasks.

    No model is needed. Exit 1 when a gate fails.

    \b
    Examples:
      agent-world check RUN/bundles/airport_slots
      agent-world check RUN/bundles/* --json
      agent-world check RUN/bundles/airport_slots --tasks RUN/tasks/airport_slots.train.jsonl
    """
    from arena.commands import run_check

    return run_check(bundles, tasks, json)


@app.command()
def train(
    run: Run,
    policy: Annotated[
        Path | None, typer.Option(help="Where to start: a policy folder; without it the shipped base policy.")
    ] = None,
    tag: Annotated[str, typer.Option(help="The tasks to train on; 'evolve*' takes several tags.")] = "train",
    name: Annotated[str, typer.Option(help="Name of the folder below RUN/train.")] = "grpo",
    config: Annotated[Path | None, typer.Option(help="A TOML file with fields of GRPOConfig.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps, over the config's.")] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same result; over the config's.")] = None,
    mesh: Annotated[
        str | None, typer.Option(help="Cut over devices: fsdp=4,tensor=2, or a plan's file of tpu_configs/.")
    ] = None,
    processes: Annotated[
        str | None,
        typer.Option(help="One of several processes: auto (TPU slice), or ADDRESS:PORT,COUNT,INDEX."),
    ] = None,
    rollout: Annotated[
        str | None,
        typer.Option(help="Devices of each process that sample together, beside the mesh or all: tensor=4."),
    ] = None,
    tracker: Annotated[
        Tracker | None, typer.Option(help="Show the metrics there too; needs the extra of that name.")
    ] = None,
    json: Json = False,
) -> int:
    """Train a policy with GRPO on the run's tasks.

    Episodes run in the sandbox. A killed training goes on when the same command is given again.

    \b
    Examples:
      agent-world train RUN
      agent-world train RUN --steps 40 --name grpo-long
      agent-world train RUN --policy RUN/train/grpo/policy --tag 'evolve*' --name evolved
      agent-world train RUN --mesh fsdp=4,tensor=2 --processes 10.0.0.1:8476,2,0
      agent-world train RUN --mesh fsdp=4 --rollout tensor=4 --config in-flight.toml --tracker trackio
    """
    from arena.training import run_train

    where = {"mesh": mesh, "processes": processes, "rollout": rollout}
    shown = tracker.value if tracker else None
    return run_train(run, policy, tag, name, config, steps, seed, json, **where, tracker=shown)


@app.command()
def arena(
    run: Run,
    policy: Annotated[
        Path | None, typer.Option(help="A policy folder; without it the shipped base policy.")
    ] = None,
    tag: Annotated[str, typer.Option(help="The tasks to measure on; they must be held out.")] = "heldout",
    name: Annotated[str | None, typer.Option(help="Name of the round, such as 'after GRPO'.")] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Measure only so many of the tasks.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Episodes a task.")] = 4,
    config: Annotated[Path | None, typer.Option(help="A training's TOML file, for its [limits].")] = None,
    mesh: Annotated[
        str | None, typer.Option(help="Cut the weights over devices of this machine: tensor=4.")
    ] = None,
    seed: Seed = 0,
    json: Json = False,
) -> int:
    """Measure a policy on held-out environments.

    Saves the round in RUN/arena and writes RUN/report.html. Tasks of an environment that training uses
    are refused.

    \b
    Examples:
      agent-world arena RUN --name "before training"
      agent-world arena RUN --policy RUN/train/grpo/policy --name "after GRPO" --samples 8
    """
    from arena.measure import run_arena
    from arena.training import read_config

    limits = read_config(config, None, None).limits if config else None
    return run_arena(run, policy, tag, name, count, samples, seed, json, limits, mesh)


@app.command()
def evolve(
    run: Run,
    budget: Annotated[int, typer.Option(help="New tasks to ask for, in all.")] = 60,
    grow: Annotated[
        bool, typer.Option(help="Make the richer environments that are asked for; else only the requests.")
    ] = True,
    seed: Seed = 0,
    author: AuthorOption = Author.offline,
    llm: LlmFile = None,
    json: Json = False,
) -> int:
    """Diagnose an arena round, ask for tasks, make richer environments.

    Writes diagnosis.json and requests.jsonl beside the last finished round of the run. Requests go to
    training environments of the weak ones' classes, never to a measured one. Those of the weakest class
    grow: one more round of tables and tools, as a new version NAME-v2 in RUN/bundles, which the requests
    then name. A language model (--author llm) reads the failed episodes, ranks, explains, writes the
    guides and grows the environments; the counts stay the program's.

    \b
    Examples:
      agent-world evolve RUN
      agent-world evolve RUN --budget 100 --json
      agent-world evolve RUN --author llm --llm model.toml
      agent-world tasks RUN --tag evolve1 --requests RUN/arena/01-after-grpo/requests.jsonl
    """
    from arena.commands import run_evolve

    return run_evolve(run, budget, seed, json, author_name(author, llm), grow)


@app.command()
def view(
    run: Run,
    task: Annotated[str | None, typer.Option(help="Show this task with its gold calls.")] = None,
    episode: Annotated[
        str | None, typer.Option(metavar="TASK#SAMPLE", help="Show this episode, turn by turn.")
    ] = None,
    json: Json = False,
) -> None:
    """Look at a run, a task or an episode.

    \b
    Examples:
      agent-world view RUN
      agent-world view RUN --task airport_slots-g-012
      agent-world view RUN --episode 'airport_slots-g-012#0'
    """
    from arena.view import run_view

    run_view(run, task, episode, json)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code; the caller's mistakes become one line, no traceback."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None and words and words[0] in COMPUTES:
        with_huge_pages()
    try:
        if words and words[0] in LOCAL_ONLY:
            _refuse_gcs(words)
        code = app(args=words or ["--help"], prog_name="agent-world", standalone_mode=False)
        sys.stdout.flush()
        if code == 130:  # Typer's own way to say that Ctrl-C was pressed
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except UsageError as err:
        if type(err).__name__ == "NoArgsIsHelpError":  # a group without a command: its message is the help
            print(err.format_message())
            return 0
        context = getattr(err, "ctx", None)
        command = context.command_path if context else "agent-world"
        return _fail(f"{' '.join(err.format_message().split())} (see '{command} --help')", 2)
    except AgentWorldError as err:
        return _fail(" ".join(str(err).split()), err.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        return _fail("interrupted", 130)
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _refuse_gcs(words: Sequence[str]) -> None:
    """Commands that work beside a run folder read and write local files only."""
    for word in words:
        path = word.partition("=")[2] if word.startswith("--") else word
        if path.startswith("gs://"):
            raise CallerError(f"{path}: 'agent-world {words[0]}' takes local paths only")


def _fail(line: str, code: int) -> int:
    print(f"agent-world: {line}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
