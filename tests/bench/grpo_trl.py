"""The toy of bench_grpo.py in TRL: ``python grpo_trl.py SPEC`` prints the seconds of each step as JSON."""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from typing import Any

import torch
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Clock(TrainerCallback):
    """Seconds of each step and of its phases."""

    def __init__(self):
        self.steps: list[dict[str, float]] = []
        self.phases: dict[str, float] = {}

    def wrap(self, owner: Any, method: str, phase: str, when=lambda: True) -> None:
        inner = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            counts, start = when(), time.perf_counter()
            result = inner(*args, **kwargs)
            if counts:
                self.phases[phase] = self.phases.get(phase, 0.0) + time.perf_counter() - start
            return result

        setattr(owner, method, timed)

    def on_step_begin(self, args, state, control, **kwargs):
        # the sampling of a step happens inside it, after this call
        self.phases, self.start = {}, time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        step = time.perf_counter() - self.start
        sampling, scoring = self.phases.get("sampling", 0.0), self.phases.get("scoring", 0.0)
        self.steps.append(
            {"sampling": sampling, "scoring": scoring, "update": step - sampling - scoring, "step": step}
        )


def save_model(spec: dict[str, Any], folder: str) -> None:
    """A random model and a tokenizer with a word a token."""
    words = {f"t{i}": i for i in range(spec["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="t0", eos_token="t1", unk_token="t0"
    ).save_pretrained(folder)
    config = Qwen3Config(
        vocab_size=spec["vocab_size"],
        hidden_size=spec["d_model"],
        num_hidden_layers=spec["n_layers"],
        num_attention_heads=spec["n_heads"],
        num_key_value_heads=spec["n_kv_heads"],
        head_dim=spec["head_dim"],
        intermediate_size=spec["d_ff"],
        tie_word_embeddings=True,
        max_position_embeddings=spec["prompt_tokens"] + spec["new_tokens"] + 1,
        eos_token_id=1,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).save_pretrained(folder)


def main() -> None:
    spec = json.loads(sys.argv[1])
    count = spec["warm"] + spec["steps"]
    folder = tempfile.mkdtemp()
    save_model(spec, folder)
    rng = random.Random(0)
    word = lambda: f"t{rng.randrange(3, spec['vocab_size'])}"  # noqa: E731
    prompts = [" ".join(word() for _ in range(spec["prompt_tokens"])) for _ in range(spec["prompts"] * count)]
    lengths: set[int] = set()

    def parity(completions, completion_ids, **kwargs):
        lengths.update(map(len, completion_ids))
        return [float(sum(ids) % 2) for ids in completion_ids]

    config = GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=spec["prompts"] * spec["group"],
        num_generations=spec["group"],
        max_steps=count,
        max_completion_length=spec["new_tokens"],
        generation_kwargs={"min_new_tokens": spec["new_tokens"]},
        temperature=1.0,
        epsilon=spec["clip_low"],
        epsilon_high=spec["clip_high"],
        beta=spec["kl_weight"],
        loss_type="dapo",
        learning_rate=spec["learning_rate"],
        lr_scheduler_type="constant",
        gradient_checkpointing=False,
        model_init_kwargs={"dtype": "float32"},
        logging_steps=10**9,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    clock = Clock()
    trainer = GRPOTrainer(
        model=folder,
        reward_funcs=parity,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
        callbacks=[clock],
    )
    clock.wrap(trainer, "_generate", "sampling")
    clock.wrap(
        trainer, "_get_per_token_logps_and_entropies", "scoring", when=lambda: not torch.is_grad_enabled()
    )
    trainer.train()
    assert lengths == {spec["new_tokens"]}, f"completions of {lengths} tokens"
    print(json.dumps({"version": trl.__version__, "steps": clock.steps}))


if __name__ == "__main__":
    main()
