"""A scripted OpenAI-compatible endpoint: a real HTTP server that plays every role over one small world.

What it says depends on the request's content alone (which prompt, how far the conversation is), so a run
that goes on elsewhere gets the same answers. On the way it misbehaves in stated places: busy, broken, slow,
malformed, cut off, declining, wrong code, an invented row. It counts what it answered in full ("paid"), by
the content of the request.
"""

import hashlib
import json
import re
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import lake_diagnosis
import lake_grow
import lake_views
import lake_world as world

from synth.author.settings import Settings

VIEWS = ("judge", "link_tools", "name_classes")
KEY = "sk-test-0123456789abcdef"


def settings_for(folder, server, **more):
    """Settings that reach the endpoint through LiteLLM, and search a folder of documents."""
    fields = {
        "model": "scripted-8b",
        "folder": folder / "llm",
        "api_base": server.url,
        "key_env": "AGENT_WORLD_TEST_KEY",
        "backoff_s": 0.01,
        "timeout_s": 60.0,
        "corpus": world.write_corpus(folder / "web"),
    }
    return Settings(**{**fields, **more})


class Scripted:
    """The endpoint. ``with Scripted() as server: server.url``."""

    def __init__(self, misbehave=True, slow_s=8.0):
        self.misbehave, self.slow_s = misbehave, slow_s
        self.seen = Counter()  # request hash -> arrivals
        self.paid = Counter()  # request hash -> whole answers sent
        self.faults = Counter()  # what went wrong on purpose
        self.prompts = Counter()  # prompt -> answers
        self.gold = {}  # instruction -> (calls, answer), for the solver
        self.before_answer = None  # called with (arrivals so far); True: say nothing
        self.lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                outer.handle(self)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/v1"

    def __enter__(self):
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()

    def handle(self, http):
        request = json.loads(http.rfile.read(int(http.headers["content-length"])))
        key = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
        with self.lock:
            self.seen[key] += 1
            first, arrivals = self.seen[key] == 1, self.seen.total()
        if self.before_answer is not None and self.before_answer(arrivals):
            http.close_connection = True
            return
        if http.headers["authorization"] != f"Bearer {KEY}":
            return send(http, 401, {"error": {"message": f"wrong key {http.headers['authorization']}"}})
        prompt = re.match(r"\[(\w+) v", request["messages"][0]["content"])[1]
        fault = self.fault(prompt, request, first)
        if fault == "slow":
            time.sleep(self.slow_s)
            return None
        if fault is not None:
            code = {"busy": 429, "broken": 500}[fault]
            return send(http, code, {"error": {"message": fault}}, {"retry-after": "0"})
        message, finish = self.reply(prompt, request)
        usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
        choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
        answer = {"id": "x", "object": "chat.completion", "created": 1, "model": "scripted"}
        send(http, 200, {**answer, "choices": [choice], "usage": usage})
        with self.lock:
            self.paid[key] += 1
            self.prompts[prompt] += 1
        return None

    def fault(self, prompt, request, first):
        """Which fault of the provider this arrival meets."""
        if not (self.misbehave and first) or len(request["messages"]) > 2:
            return None
        kind = {"mine": "busy", "tool_design": "broken", "enrich": "slow", "diagnose": "broken"}.get(prompt)
        if kind:
            with self.lock:
                self.faults[kind] += 1
        return kind

    def reply(self, prompt, request):
        messages = request["messages"]
        turn = sum(m["role"] == "assistant" for m in messages)
        if prompt == "mine":
            return calls_of(world.mining(turn)), "tool_calls"
        if prompt == "diagnose":
            return calls_of(lake_diagnosis.diagnosis(messages, turn)), "tool_calls"
        if prompt == "solve":
            return self.solve(request, turn)
        if self.misbehave and turn == 0:
            odd = self.odd(prompt, request)
            if odd is not None:
                return odd
        user = messages[1]["content"]
        actor = lake_grow if lake_grow.plays(prompt, user) else lake_views if prompt in VIEWS else world
        value = getattr(actor, prompt)(user, turn, request.get("seed", 0))
        return {"content": value if isinstance(value, str) else json.dumps(value)}, "stop"

    def odd(self, prompt, request):
        """An answer that is no use."""
        if prompt == "enrich":
            return self.note("malformed", {"content": '{"tables": [{"name": "per'}, "stop")
        if prompt == "tool_design" and request["max_tokens"] < 8000:
            return self.note("cut off", {"content": '{"tools": [{"name": "find_'}, "length")
        if prompt == "word_chain" and not self.faults["declines"]:
            return self.note("declines", {"content": "I'm sorry, but I can't help with that."}, "stop")
        return None

    def note(self, name, message, finish):
        with self.lock:
            self.faults[name] += 1
        return message, finish

    def solve(self, request, turn):
        """Plays the gold calls; the second try of a task answers wrongly, the third does nothing."""
        instruction = request["messages"][1]["content"]
        if instruction not in self.gold:
            return {"content": "I could not find out."}, "stop"
        calls, answer = self.gold[instruction]
        number = request.get("seed", 0) % 1000
        if number == 2:
            return {"content": "I could not find out."}, "stop"
        if turn < len(calls):
            step = calls[turn]
            return calls_of([(step.tool, step.arguments)]), "tool_calls"
        said = "wrong" if number == 1 else answer
        return {"content": json.dumps({"answer": said})}, "stop"


def calls_of(calls):
    """An assistant message with tool calls."""
    made = [
        {
            "id": f"call{n}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for n, (name, arguments) in enumerate(calls)
    ]
    return {"content": None, "tool_calls": made}


def send(http, code, value, headers=None):
    body = json.dumps(value).encode()
    http.send_response(code)
    for name, text in {"content-type": "application/json", **(headers or {})}.items():
        http.send_header(name, text)
    http.send_header("content-length", str(len(body)))
    http.end_headers()
    http.wfile.write(body)
