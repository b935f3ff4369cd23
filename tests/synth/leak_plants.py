"""Fifty ways to give a task away, written before looking at what the check finds.

Each plant takes the names of an environment and gives (a sentence to put behind an instruction, the answer it
gives away or None). Names are taken from the environment at hand, answers are stated here.
"""


class Names:
    """Two-word names of tools, columns and tables of an environment, and plain ones."""

    def __init__(self, tools, tables):
        self.tool = next(t.name for t in tools if "_" in t.name)
        self.other = [t.name for t in tools if "_" in t.name][-1]
        columns = [(t.name, c.name) for t in tables for c in t.columns]
        self.table, self.column = next((t, c) for t, c in columns if c.count("_") >= 1)
        self.long = max((c for _, c in columns), key=lambda c: c.count("_"))
        self.plain_table, self.plain = next((t, c) for t, c in columns if c.isalpha())
        self.wide_table = next((t.name for t in tables if "_" in t.name), None)
        parameters = [p for t in tools for p in t.input_schema.get("properties", {})]
        self.parameter = next((p for p in parameters if "_" in p), self.column)


def camel(name):
    first, *rest = name.split("_")
    return first + "".join(w.capitalize() for w in rest)


def pascal(name):
    return "".join(w.capitalize() for w in name.split("_"))


def spaced(name):
    return name.replace("_", " ")


NAMES = {
    "tool as it is": lambda n: f"Use {n.tool} for that.",
    "tool in backticks": lambda n: f"The right one is `{n.tool}`.",
    "tool as a call": lambda n: f"Start with {n.tool}(...) please.",
    "tool in spaced words": lambda n: f"You may {spaced(n.tool)} to see it.",
    "tool in capitals": lambda n: f"{n.tool.upper()} knows it.",
    "tool in camel case": lambda n: f"Try {camel(n.tool)} first.",
    "tool in Pascal case": lambda n: f"There is {pascal(n.other)} for it.",
    "tool with hyphens": lambda n: f"Run {n.other.replace('_', '-')} at the end.",
    "tool with dots": lambda n: f"See {n.other.replace('_', '.')} for more.",
    "tool in quotation marks": lambda n: f'It is called "{n.other}" here.',
    "tool over two lines": lambda n: f"You could {n.tool.split('_')[0]}\n{spaced(n.tool).split(' ', 1)[1]}.",
    "column as it is": lambda n: f"It is in {n.column}.",
    "column in capitals": lambda n: f"Look at {n.column.upper()}.",
    "column in camel case": lambda n: f"Sort by {camel(n.column)}.",
    "column in Pascal case": lambda n: f"Sort by {pascal(n.long)}.",
    "column in backticks": lambda n: f"Its `{n.plain}` counts.",
    "column with an equals sign": lambda n: f"Only those with {n.plain}=1.",
    "column with its table": lambda n: f"That is {n.table}.{n.column} then.",
    "column of SQL": lambda n: f"That is, WHERE {n.column} > 3.",
    "parameter as it is": lambda n: f"Set {n.parameter} to 3.",
    "parameter as JSON": lambda n: '{"' + n.parameter + '": 3}',
    "table in backticks": lambda n: f"Everything is in `{n.plain_table}`.",
    "table of a plain column": lambda n: f"I mean {n.plain_table}.{n.plain} of it.",
    "table as it is": lambda n: f"It stands in {n.wide_table or n.plain_table + '.' + n.plain}.",
    "database file": lambda n: "The rows are in data.sqlite.",
    "path of a tool": lambda n: f"Read tools/{n.tool}.py before.",
    "data file": lambda n: "I copied it from export_2024.csv yesterday.",
    "manifest": lambda n: "As manifest.json says.",
    "provenance file": lambda n: "See state/provenance.jsonl on that.",
    "page": lambda n: "It is all in README.md, too.",
}
ANSWERS = {
    "text as it is": ("I believe it is Keflavik.", "Keflavik"),
    "text in other case": ("Surely KEFLAVIK again?", "Keflavik"),
    "text without accents": ("Perhaps Tromso.", "Tromsø"),
    "text with other punctuation": ("It was Saint Johns, wasn't it?", "Saint-Johns"),
    "name the other way round": ("Brandt, Ada was the one.", "Ada Brandt"),
    "key with a space": ("Something like PER 104.", "PER-104"),
    "key closed up": ("Is it per104?", "PER-104"),
    "number as it is": ("It should come to 1642 metres.", 1642),
    "number with commas": ("Some 31,722 of them.", 31722),
    "number with spaces": ("Some 31 722 of them.", 31722),
    "number with points": ("Some 31.722 of them.", 31722),
    "number in words": ("One thousand six hundred and forty-two metres.", 1642),
    "number rounded": ("That is 163.2 degrees, roughly.", 163.17),
    "number as a percentage": ("So 12.5% of all.", 0.125),
    "number in thousands": ("About 31.7 thousand square kilometres.", 31722.5),
    "date in words": ("On 5 January 2026, I think.", "2026-01-05"),
    "date the American way": ("On 1/5/2026, I think.", "2026-01-05"),
    "small number called the answer": ("The answer should be 7.", 7),
    "small number in words": ("The right number is seven, as you will see.", 7),
    "one part of a list": ("Among them is Baikal.", ["Ladoga", "Baikal", 12]),
}
assert len(NAMES) + len(ANSWERS) == 50
