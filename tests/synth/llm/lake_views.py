"""What the scripted endpoint says as judge of sentences, as linker of tools and as namer of classes.

The judge knows the cases that come along, and errs where a test tells it to (``ACCEPTS``: kinds of wrong
cases that it takes for right). Its first word on most right answers quotes what does not stand there; told
back, it mends.
"""

import json
import re

from synth.judging import read_cases

ACCEPTS: set[str] = set()


def judge(user, turn, _seed):
    wanted = re.search(r"^The answer must state: (.*)$", user, flags=re.M)[1]
    answer = re.search(r"^-----\n(.*)\n-----$", user, flags=re.M | re.S)[1]
    known = {(case.wanted, case.answer): case for case in read_cases()}
    case = known.get((wanted, answer))
    right = wanted in answer if case is None else case.right or case.kind in ACCEPTS
    if not right:
        return {"states": False, "quote": "", "why": "it does not say all of it"}
    quote = answer if turn or (case and case.kind == "reworded") else f"{answer} Indeed."
    return {"states": True, "quote": quote, "why": ""}


def link_tools(user, turn, _seed):
    """Links every tool that gives text to every target that takes text; a made-up tool at first."""
    rows = re.findall(r"^- (\w+): (.*) Parameters: (\{.*\}) Results: (\{.*\})$", user, flags=re.M)
    targets = re.findall(r"^- (\w+)$", user, flags=re.M)
    parameters = {name: json.loads(given) for name, _, given, _ in rows}
    gives = [name for name, text, _, _ in rows if "gives" in text]
    links = [
        {"source": source, "target": target, "parameter": parameter}
        for target in targets
        for parameter in parameters[target]
        for source in gives
        if source != target
    ]
    if turn == 0:
        links = [*links, {"source": "oracle", "target": targets[0], "parameter": "x"}]
    return {"links": links}


def name_classes(user, turn, _seed):
    """Names each class after its first two terms, under Games; at first one twice, under a free name."""
    rows = [json.loads(line) for line in user.split("Classes:\n")[1].splitlines() if line.strip()]
    named = [
        {
            "cluster": row["cluster"],
            "second_level": " and ".join(row["terms"][:2]).title() + f" {row['cluster']}",
            "first_level": "Games",
        }
        for row in rows
    ]
    if turn == 0:
        named[0] |= {"second_level": named[-1]["second_level"], "first_level": "Fun"}
    return {"classes": named}
