"""What Prometheus reads at ``/metrics``: requests, tokens, times, and how full the engine is."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from model.driver import Stats

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
# of the driver's Stats
_GAUGES = {
    "slots": "Sequences that decode at a time.",
    "slots_used": "Slots in use.",
    "decoding": "Turns that have a slot.",
    "waiting": "Turns that wait for a slot.",
    "version": "Version of the policy.",
}
_COUNTS = {
    "prefilled": "Prompt tokens computed.",
    "shared": "Prompt tokens taken from a prefill that another request had asked for.",
    "decoded": "Tokens sampled by the engine, those after a stop string too.",
    "finished": "Turns that ended by themselves.",
    "cancelled": "Turns that were cancelled.",
}


class Metrics:
    """The counters of one server, in a registry of their own.

    Args:
        stats: of the driver, asked at each scrape.
    """

    def __init__(self, stats: Callable[[], Stats]):
        r = self.registry = CollectorRegistry()
        self.requests = Counter("agent_world_requests", "Answered requests.", ["path", "status"], registry=r)
        self.seconds = Histogram(
            "agent_world_request_seconds",
            "From the request to the answer's end.",
            ["path"],
            buckets=_SECONDS,
            registry=r,
        )
        self.first_token = Histogram(
            "agent_world_first_token_seconds",
            "From submission to the first sampled tokens.",
            buckets=_SECONDS,
            registry=r,
        )
        self.prompt_tokens = Counter("agent_world_prompt_tokens", "Tokens of prompts.", registry=r)
        self.sampled_tokens = Counter("agent_world_sampled_tokens", "Sampled tokens.", registry=r)
        self.cancelled = Counter(
            "agent_world_cancelled_requests", "Requests whose samples did not end by themselves.", registry=r
        )
        r.register(_Engine(stats))


class _Engine(Collector):
    def __init__(self, stats: Callable[[], Stats]):
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        now = self._stats()
        for name, text in _GAUGES.items():
            yield GaugeMetricFamily(f"agent_world_{name}", text, value=getattr(now, name))
        for name, text in _COUNTS.items():
            yield CounterMetricFamily(f"agent_world_engine_{name}", text, value=getattr(now, name))
