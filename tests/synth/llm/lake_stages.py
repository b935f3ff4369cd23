"""All stages over the small world of lakes, from a theme to the diagnosis, made once for several tests."""

from lake_diagnosis import episode_of
from lake_world import THEME
from scripted_llm import settings_for

from arena.diagnose import diagnose_by
from arena.evaluate import score
from synth import tasks_graph, tasks_program
from synth.admission import check_task, validate_environment
from synth.author import make_author
from synth.complexify import complexify
from synth.env.bundle import read_bundle, write_bundle
from synth.env.episode import EnvServer, VerifierServer
from synth.mining import mine
from synth.solver import filter_solvable
from synth.tools import make_environment


class Run:
    """One run of all stages, shared by tests."""

    def __init__(self, folder, server):
        self.server, self.folder = server, folder
        self.settings = settings_for(folder, server, timeout_s=6.0, retries=8)
        self.author = make_author("llm", self.settings)
        self.mined = mine(THEME, 0, self.author)
        self.db = complexify(self.mined, THEME, self.author, 0)
        drafted = make_environment(self.db, THEME, self.author, 0)
        self.env, self.report = validate_environment(drafted, folder)
        write_bundle(self.env, folder / "bundle")
        self.bundle = read_bundle(folder / "bundle")
        self.rejected = []
        with EnvServer(folder / "bundle") as env, VerifierServer() as judge:
            self.graph = tasks_graph.make_tasks(
                self.bundle, env, self.author, 1, 4, reject=self.rejected.append
            )
            self.programs = tasks_program.make_tasks(
                self.bundle, env, self.author, 1, 3, verifier_server=judge, reject=self.rejected.append
            )
            drafts = [*self.graph, *self.programs]
            self.sound = [t for t in drafts if not check_task(env, self.bundle, t, judge)]
            server.gold = {t.instruction: (t.chain, t.reference_answer) for t in self.sound}
            solver = self.author.solver()
            self.solved = filter_solvable(self.bundle, env, self.sound, solver, judge)
            tries = [(t, solver.attempt(self.bundle, env, t, n, judge)) for t in self.sound for n in range(5)]
            self.episodes = [episode_of(env, task, attempt) for task, attempt in tries]
        self.round = score(self.episodes, self.sound, 5, "filter", {})
        self.diagnosis = self.diagnose(self.author)

    def diagnose(self, author):
        kinds = {"lake_permits": {tool.name: tool.meta["kind"] for tool in self.bundle.tools}}
        manifests = [self.bundle.manifest]
        return diagnose_by(author, self.round, self.episodes, self.sound, manifests, kinds)
