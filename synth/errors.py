"""The errors of the project: three faults, classified where they are known.

* :class:`CallerError`: the user's or agent's mistake (bad option, missing file, bad argument). Exit 2.
* :class:`EnvironmentFault`: an environment is broken (a tool raised what it should not, a bundle is damaged).
* :class:`InfrastructureError`: a sandbox died, a disk is full, a time-out of ours. Never a wrong answer.
"""


class AgentWorldError(Exception):
    """Base of all errors that carry one clear line for the user, and the exit status of the command."""

    exit_code = 2


class CallerError(AgentWorldError):
    """The caller's mistake; the message names the file, the field and the mend."""


class EnvironmentFault(AgentWorldError):
    """An environment is at fault."""


class InfrastructureError(AgentWorldError):
    """The machinery failed; the work can be tried again."""

    exit_code = 1
