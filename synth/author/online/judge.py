"""The judge as a model: does an answer state what it must? See :mod:`synth.judging` for where it may judge.

It gets the request, the statement and the answer, and must quote the words that state it; a quote that does
not stand in the answer is told back. What an answer says to the judge is part of the answer, never an order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from synth.author.asking import GIVEN_UP, Mend, ask
from synth.author.llm import LLM
from synth.verify import fold

LONGEST = 2000  # characters of an answer that a judge reads (ours): a statement takes one sentence


@dataclass(frozen=True)
class LLMJudge:
    """See :class:`synth.judging.Judge`."""

    llm: LLM

    @property
    def label(self) -> str:
        return f"llm:{self.llm.settings.model}"

    def states(self, instruction: str, wanted: str, answer: str) -> tuple[bool, str]:
        """Whether the answer states what is wanted. A judge that declines or never quotes right says no.

        Raises:
            BudgetExceeded, CallerError, InfrastructureError: see :meth:`synth.author.llm.LLM.complete`.
        """
        if len(answer) > LONGEST:
            return False, f"longer than {LONGEST} characters"
        inputs = {"instruction": instruction, "wanted": wanted, "answer": answer}

        def check(reply: dict[str, Any]) -> tuple[bool, str]:
            if not reply["states"]:
                return False, reply["why"]
            if not fold(reply["quote"]) or fold(reply["quote"]) not in fold(answer):
                raise Mend("the quote does not stand in the answer; copy it word for word, or say false")
            return True, reply["quote"]

        try:
            return ask(self.llm, "judge", inputs, check, stage="judge")
        except GIVEN_UP as err:
            return False, str(err)[:200]
