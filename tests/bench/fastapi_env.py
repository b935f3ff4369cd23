"""AWM's way to run an environment, for ``bench_env``: a FastAPI server over a SQLite file, a process an
episode.

``python fastapi_env.py BUNDLE DB PORT`` serves each tool of a bundle at ``POST /tools/<name>``. Written for
the comparison, after the public description of AWM's runtime (a generated FastAPI application, started with
uvicorn on a port of its own for each episode, over a copy of the database file); its code is our bundle's.
"""

from __future__ import annotations

import sqlite3
import sys
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from synth.env.bundle import read_bundle
from synth.env.context import Context, ToolError


def application(bundle_path: str, db_path: str) -> FastAPI:
    bundle = read_bundle(bundle_path)
    app = FastAPI()
    db = sqlite3.connect(db_path, isolation_level=None, check_same_thread=False)
    db.row_factory = sqlite3.Row
    context = Context(db, dict(bundle.state.files), bundle.manifest.clock, 0)

    def route(name: str, function: Any) -> None:
        @app.post(f"/tools/{name}")
        async def run(request: Request) -> JSONResponse:
            arguments = await request.json()
            before = context.start_call()
            db.execute("BEGIN")
            try:
                value = function(context, **arguments)
            except ToolError as err:
                db.execute("ROLLBACK")
                context.undo(before)
                return JSONResponse({"error": {"code": err.code, "message": err.message}}, status_code=400)
            db.execute("COMMIT")
            return JSONResponse(value)

    for tool in bundle.tools:
        names: dict[str, Any] = {"__name__": tool.name, "ToolError": ToolError}
        exec(tool.code, names)
        route(tool.name, names[tool.name])

    @app.get("/health")
    async def health() -> dict[str, bool]:
        return {"ok": True}

    return app


if __name__ == "__main__":
    uvicorn.run(
        application(sys.argv[1], sys.argv[2]), host="127.0.0.1", port=int(sys.argv[3]), log_level="error"
    )
