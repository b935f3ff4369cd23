"""Clock, ids and randomness of a foreign Python program, held still. Standard library only.

Found first on ``PYTHONPATH`` inside the sandbox, so Python runs it before the program. The clock stands at
``AGENT_WORLD_CLOCK`` (ISO, UTC); ``random``, ``secrets``, ``uuid`` and ``os.urandom`` follow
``AGENT_WORLD_SEED``. ``time.monotonic`` runs on, because event loops need it.
"""

import datetime
import os
import random
import time
import uuid

_rng = random.Random("agent-world:" + os.environ.get("AGENT_WORLD_SEED", "0"))
_clock = os.environ.get("AGENT_WORLD_CLOCK", "2026-01-05T09:00:00Z").replace("Z", "+00:00")
_datetime, _date = datetime.datetime, datetime.date
_moment = _datetime.fromisoformat(_clock)
_seconds = _moment.timestamp()
_gmtime, _localtime, _strftime, _ctime = time.gmtime, time.localtime, time.strftime, time.ctime

time.time = lambda: _seconds
time.time_ns = lambda: int(_seconds) * 1_000_000_000
time.gmtime = lambda seconds=None: _gmtime(_seconds if seconds is None else seconds)
time.localtime = lambda seconds=None: _localtime(_seconds if seconds is None else seconds)
time.ctime = lambda seconds=None: _ctime(_seconds if seconds is None else seconds)
time.strftime = lambda form, moment=None: _strftime(form, time.localtime() if moment is None else moment)


class _AsBefore(type):
    """Values made by C code are of the original class, and count as instances still."""

    def __instancecheck__(cls, value):
        return isinstance(value, cls.__mro__[1])

    def __subclasscheck__(cls, other):
        return issubclass(other, cls.__mro__[1])


class _Date(_date, metaclass=_AsBefore):
    @classmethod
    def today(cls):
        return cls.fromtimestamp(_seconds)


class _DateTime(_datetime, metaclass=_AsBefore):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(_seconds, tz)

    @classmethod
    def utcnow(cls):
        return cls.fromtimestamp(_seconds, datetime.UTC).replace(tzinfo=None)

    @classmethod
    def today(cls):
        return cls.now()


for _kind, _name in ((_Date, "date"), (_DateTime, "datetime")):
    _kind.__name__ = _kind.__qualname__ = _name
    _kind.__module__ = "datetime"
    setattr(datetime, _name, _kind)

os.urandom = lambda size: _rng.randbytes(size)
setattr(random, "_urandom", os.urandom)  # noqa: B010 (SystemRandom, and with it secrets)
random.seed(_rng.random())
uuid.uuid1 = lambda node=None, clock_seq=None: uuid.UUID(bytes=_rng.randbytes(16), version=1)
uuid.uuid4 = lambda: uuid.UUID(bytes=_rng.randbytes(16), version=4)
