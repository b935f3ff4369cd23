"""Pretraining of the shipped base policy: from a corpus of scripted episodes to a small model.

A tiny model finds copying hard. What makes it learn is a curriculum over the number of tools in the
prompt (one needed tool first, the whole list in the end), real text, and a loss on the whole text at a
low weight beside the loss on the assistant's tokens (measured; the tries are in rl/README.md).

In: a folder of records (:mod:`rl.corpus`). Out: a policy folder (:mod:`model.hf`), a metrics JSONL and
checkpoints from which a killed run goes on.
"""

from __future__ import annotations

import dataclasses
import json
import pickle
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from flax import nnx

from model.config import ModelConfig
from model.tokens import Call, ChatTemplate, Tokenizer, answer_text, call_text, tool_text, train_tokenizer
from rl.batch import (
    FIELDS,
    Batch,
    Sample,
    empty,
    micro_batches,
    pack,
    take_rows,
    text_sample,
    with_key_blocks,
)
from rl.copying import copying_start
from rl.corpus import Record, build_corpus, read_corpus, thin_tools
from rl.learner import init_state
from rl.policy import Policy
from rl.renaming import Renamer
from rl.sft import make_lm_step
from synth.themes import builtin

OTHER_WEIGHT = 0.2  # loss weight of text that is not the assistant's (ours, measured: see rl/README.md)
PEAK_RATE = 2e-3  # ours, for models of 1 to 2 million parameters
WARMUP, DECAY = 100, 600  # steps: linear up, constant, linear down (ours)
GO_ON_RATE = 2.5e-3  # of Muon, when training goes on from a policy (ours, measured: rl/README.md)
GO_ON_DECAY = 0.6  # share of those steps over which the rate comes down (ours)
LEVELS = 12  # tools in the prompt at the last level
PASSED = 0.75  # a level is passed when the loss (nats an assistant's token) falls below this (ours)
STAY = 120  # steps at least at a level (ours)
TOGETHER_FROM = 5  # level from which episodes share a tool list
TOGETHER = 7  # episodes that share one (ours: they fill a row)
SHAPES = ((4, 512), (4, 1024))  # rows and columns of a step, before and from TOGETHER_FROM
ROW = 1024  # the longest episode, in tokens


def base_config(vocab_size: int) -> ModelConfig:
    """The shipped shape: 2 million parameters (ours: the largest that the demo can train)."""
    return ModelConfig(
        vocab_size=vocab_size, d_model=192, n_layers=4, n_heads=4, n_kv_heads=2, head_dim=64, d_ff=512,
        rope_theta=1e6, rms_eps=1e-6, max_len=1024,
    )  # fmt: skip


def sample_of(
    record: Record, tools: list[dict], template: ChatTemplate, other: float = OTHER_WEIGHT
) -> Sample:
    """Token ids of a scripted episode with loss weights: assistant tokens 1, the rest ``other``."""
    ids = list(template.prompt(tools, record.instruction))
    weights = [other] * len(ids)

    def add(new: list[int], weight: float) -> None:
        ids.extend(new)
        weights.extend([weight] * len(new))

    for call, observation in zip(record.calls, record.observations, strict=True):
        turn = call.get("raw") or Call(call["tool"], call["arguments"])
        add(template.assistant(turn), 0.0 if call.get("wrong") else 1.0)
        add(template.observation(observation), other)
    add(template.answer(record.answer), 1.0)
    return text_sample(ids, weights)


def corpus_texts(records: Sequence[Record]) -> list[str]:
    """Texts for the tokenizer: tool lines, questions, calls, results and answers."""
    texts = []
    seen: set[str] = set()
    for r in records:
        for line in map(tool_text, r.tools):
            if line not in seen:
                seen.add(line)
                texts.append(line)
        texts += [r.instruction, *r.observations, answer_text(r.answer)]
        texts += [call_text(Call(c["tool"], c["arguments"])) for c in r.calls if not c.get("wrong")]
    return texts


def split_records(records: Sequence[Record], share: float = 0.06) -> tuple[list[Record], list[Record]]:
    """Training and held-out records, split by theme so that held-out environments are new in kind."""
    themes = sorted({r.env_id.rsplit("-", 1)[0] for r in records})
    held = set(random.Random(7).sample(themes, max(1, round(len(themes) * share))))
    inside = [r for r in records if r.env_id.rsplit("-", 1)[0] not in held]
    return inside, [r for r in records if r.env_id.rsplit("-", 1)[0] in held]


def make_schedule(steps: int, peak: float = PEAK_RATE, decay: float = DECAY) -> optax.Schedule:
    """Warm up, stay, come down over the last ``decay`` steps: a run can be prolonged before it comes down."""

    def rate(count):
        up = jnp.minimum(1.0, (count + 1) / WARMUP)
        down = jnp.clip((steps - count) / decay, 0.02, 1.0)
        return peak * jnp.minimum(up, down)

    return rate


def make_pretrain_optimizer(steps: int, going_on: bool) -> optax.GradientTransformation:
    """AdamW from a fresh start; Muon (Jordan et al. 2024) on the matrices when training goes on.

    Muon's updates are scaled to AdamW's (0.2, Liu et al. 2025, "Muon is scalable"); embeddings and norms
    stay with AdamW, at half the rate (ours).
    """
    if not going_on:
        inner = optax.adamw(make_schedule(steps), b1=0.9, b2=0.95, weight_decay=0.05)
    else:
        rate = make_schedule(steps, GO_ON_RATE, GO_ON_DECAY * steps)
        inner = optax.contrib.muon(
            rate, adam_b1=0.9, adam_b2=0.95, weight_decay=0.05, adam_learning_rate=lambda n: rate(n) / 2,
            consistent_rms=0.2, muon_weight_dimension_numbers=_matrices,
        )  # fmt: skip
    return optax.chain(optax.clip_by_global_norm(1.0), inner)


def _matrices(params: Any) -> Any:
    """Which parameters Muon takes: matrices other than the embedding."""

    def place(path: tuple, array: jax.Array) -> optax.contrib.MuonDimensionNumbers | None:
        embedding = "embedding" in jax.tree_util.keystr(path)
        return None if embedding or array.ndim != 2 else optax.contrib.MuonDimensionNumbers()

    return jax.tree_util.tree_map_with_path(place, params)


def make_turn_score(graphdef: nnx.GraphDef) -> Callable:
    """Jitted: which assistant tokens would be sampled greedily, given the gold text before them."""

    @jax.jit
    def score(params, batch: Batch):
        model = nnx.merge(graphdef, params)
        logits = model.logits(model(batch.tokens, batch.positions, batch.segment_ids))
        return jnp.argmax(logits, axis=-1) == batch.targets

    return score


def exact_turns(score: Callable, params, samples: Sequence[Sample], rows: int = 4) -> tuple[float, float]:
    """Shares of assistant turns and of whole episodes that greedy decoding gets right (teacher forced)."""
    turns = good = episodes = whole = 0
    for start in range(0, len(samples), rows):
        part = list(samples[start : start + rows])
        batch = empty(rows, ROW)
        for r, sample in enumerate(part):
            one = pack([sample], ROW)
            for name in FIELDS:
                getattr(batch, name)[r] = getattr(one, name)[0]
        right = np.asarray(score(params, batch))
        for r in range(len(part)):
            mine = batch.weights[r] >= 1.0
            edges = np.flatnonzero(np.diff(np.concatenate([[0], mine.astype(int), [0]])))
            results = [bool(right[r, a:b].all()) for a, b in zip(edges[::2], edges[1::2], strict=True)]
            turns, good = turns + len(results), good + sum(results)
            episodes, whole = episodes + 1, whole + all(results)
    return good / max(turns, 1), whole / max(episodes, 1)


@dataclass
class Curriculum:
    """How many tools the prompt lists: one more each time the loss says that the last step was learnt."""

    level: int = 1
    since: int = 0  # steps at this level
    loss: float = 9.9  # running mean over about 50 steps

    def saw(self, loss: float) -> None:
        self.loss, self.since = 0.98 * self.loss + 0.02 * loss, self.since + 1
        if self.level < LEVELS and self.since >= STAY and self.loss < PASSED:
            self.level, self.since = self.level + 1, 0


class Feed:
    """Packed batches for a level of the curriculum, deterministic in (seed, step, level).

    At first every episode stands alone with a short tool list and its whole text is learnt. Later
    several episodes of one environment share a long list (see ``share_prompts`` in :mod:`rl.batch`): twice
    as many episodes fit, and the list itself carries no loss.
    """

    def __init__(self, records: Sequence[Record], template: ChatTemplate, seed: int):
        self.records, self.template, self.seed = records, template, seed
        self.of_env: dict[str, list[Record]] = {}
        for record in records:
            self.of_env.setdefault(record.env_id, []).append(record)
        self.envs = sorted(self.of_env)
        self.renamer = Renamer(records)

    def batch(self, step: int, level: int) -> Batch:
        rng = random.Random(f"{self.seed}:{step}:{level}")
        together = level >= TOGETHER_FROM
        rows, row = SHAPES[together]
        samples: list[Sample] = []
        wanted = rows * row * (1.9 if together else 1.05)
        while wanted > 0:
            if together:
                new = self.family(rng, level, step, len(samples))
            else:
                new = [self.single(rng, level)]
            samples += [s for s in new if len(s.ids) <= row]
            wanted -= sum(len(s.ids) for s in new)
        packed = pack(samples, row, share_prompts=together)
        full = np.argsort(-np.sum(packed.segment_ids > 0, axis=1), kind="stable")
        chosen = take_rows(packed, np.sort(full[:rows]))
        return micro_batches(chosen, rows)[0]  # padded to the full number of rows

    def single(self, rng: random.Random, most: int) -> Sample:
        """One episode with its own list; at the first levels those of one or two calls."""
        record = rng.choice(self.records)
        while len(record.calls) > most + 1:
            record = rng.choice(self.records)
        record = self.renamer.rename([record], rng)[0]
        limit = most if rng.random() < 0.8 else rng.randint(1, most)
        return sample_of(record, thin_tools(record.tools, record.needed, limit, rng), self.template)

    def family(self, rng: random.Random, most: int, step: int, number: int) -> list[Sample]:
        """Episodes of one environment behind one tool list."""
        pile = self.of_env[rng.choice(self.envs)]
        records = self.renamer.rename(rng.sample(pile, min(TOGETHER, len(pile))), rng)
        needed = sorted({name for r in records for name in r.needed})
        tools = thin_tools(
            records[0].tools, needed, rng.randint(min(most, len(needed)), max(most, len(needed))), rng
        )
        shared = _common(self.template.prompt(tools, "a"), self.template.prompt(tools, "b"))
        samples = []
        for record in records:
            sample = sample_of(record, tools, self.template)
            sample.weights[:shared] = 0.0
            samples.append(dataclasses.replace(sample, prompt_length=shared, group=(step, number)))
        return samples


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _fresh_policy(train: Sequence[Record], out: Path, vocab_size: int, seed: int) -> Policy:
    """A copying start (:mod:`rl.copying`), with a tokenizer that is learnt unless ``out`` holds one."""
    if not (out / "tokenizer.json").exists():
        rng, renamer = random.Random(seed), Renamer(train)
        picked = rng.sample(train, min(len(train), 3000))
        renamed = [renamer.rename([record], rng)[0] for record in picked]
        train_tokenizer(corpus_texts([*picked, *renamed]), vocab_size, out)
    policy = Policy.fresh(base_config(vocab_size), Tokenizer.load(out), seed)
    return policy.with_params(copying_start(policy.params, policy.config, seed), 0)


def pretrain(
    corpus: Path, out: Path, *, steps: int, seed: int = 0, vocab_size: int = 2048, save_every: int = 200,
    start_from: Path | None = None, log: Callable[[str], None] = print,
) -> None:  # fmt: skip
    """Train a base policy for ``steps`` steps; a killed run goes on from its last save.

    Args:
        start_from: a policy folder to go on from, with whole tool lists and Muon; None starts afresh.
    """
    out.mkdir(parents=True, exist_ok=True)
    train, held = split_records(read_corpus(corpus))
    log(f"{len(train)} training and {len(held)} held-out episodes")
    policy = Policy.load(start_from) if start_from else _fresh_policy(train, out, vocab_size, seed)
    optimizer = make_pretrain_optimizer(steps, start_from is not None)
    curriculum = Curriculum(level=1 if start_from is None else LEVELS)
    state, start, tokens = init_state(policy.params, optimizer), 0, 0
    state_file = out / "state.pkl"
    if state_file.exists():
        start, state, tokens, curriculum = pickle.loads(state_file.read_bytes())
        log(f"going on from step {start}")
    step_fn, score = make_lm_step(policy.score, optimizer), make_turn_score(policy.graphdef)
    feed = Feed(train, policy.template, seed)
    rng = random.Random(1)
    probe = [sample_of(r, r.tools, policy.template) for r in rng.sample(held, min(len(held), 100))]
    probe = [s for s in probe if len(s.ids) <= ROW][:60]
    began, seen, losses = time.time(), 0, []
    for step in range(start, steps):
        batch = feed.batch(step, curriculum.level)
        state, numbers = step_fn(state, with_key_blocks(batch))
        losses.append(float(numbers["target_loss"]))
        curriculum.saw(losses[-1])
        seen += batch.tokens.size
        if (step + 1) % save_every == 0 or step + 1 == steps:
            turns, whole = exact_turns(score, state.params, probe)
            line = {
                "step": step + 1, "level": curriculum.level, "loss": round(float(np.mean(losses)), 4),
                "exact_turns": round(turns, 4), "exact_episodes": round(whole, 4),
                "tokens": tokens + seen, "tokens_per_s": round(seen / (time.time() - began)),
            }  # fmt: skip
            losses = []
            with (out / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
            log(json.dumps(line))
            whole_state = (step + 1, jax.device_get(state), tokens + seen, curriculum)
            temporary = state_file.with_suffix(".part")
            temporary.write_bytes(pickle.dumps(whole_state))
            temporary.rename(state_file)
            policy.with_params(state.params, 0).save(out / "policy", dtype="bfloat16")


def run_pretrain(
    out: Path, *, environments: int = 5, steps: int = 6000, seed: int = 0, workers: int = 2,
    start_from: Path | None = None, log: Callable[[str], None] = print,
) -> int:  # fmt: skip
    """``agent-world pretrain``: build the corpus below ``out`` where it is missing, then train.

    Args:
        environments: seeds a theme of the ``pretrain`` split, each one environment.
        start_from: see :func:`pretrain`.

    Returns:
        0; the policy lies in ``out/policy``.
    """
    themes = builtin("pretrain")
    for line in build_corpus(themes, range(1, environments + 1), out / "corpus", workers=workers):
        log(line)
    pretrain(out / "corpus", out, steps=steps, seed=seed, start_from=start_from, log=log)
    log(f"policy: {out / 'policy'}")
    return 0
