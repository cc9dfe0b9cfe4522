"""Serving by several replicas: each rank answers HTTP on a port of its own, in front of which any balancer may stand.

    torchrun --standalone --nproc-per-node 2 examples/serve_replicas.py --port 8000
    curl -d '[[1, 2, 3, 4]]' http://127.0.0.1:8000/

Replicas share the store: one compiles, the others load. None answers before all are warm, so that a balancer never
meets a compile. Batches have any number of rows.
"""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
import torch.distributed as dist
import typer
from torch import nn

FEATURES = 4


def served() -> nn.Module:
    """The model: the same on every replica."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.GELU(), nn.Linear(64, 2), nn.Softmax(-1)).eval()
    return torch.compile(model, backend="max_backend", dynamic=True)


def handler(model: nn.Module) -> type[BaseHTTPRequestHandler]:
    """Answers a list of rows with a list of rows, and anything else with status 400 and the reason."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status, answer = self._answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _answer(self, body: bytes) -> tuple[int, object]:
            try:
                rows = torch.tensor(json.loads(body), dtype=torch.float32)
            except (ValueError, TypeError) as error:
                return 400, {"error": f"the body is no list of rows of numbers: {error}"}
            if rows.dim() != 2 or rows.shape[1] != FEATURES:
                return 400, {"error": f"rows have {FEATURES} numbers; the shape is {list(rows.shape)}"}
            with torch.inference_mode():
                return 200, model(rows).tolist()

    return Handler


def main(port: int = 8000) -> None:
    """Serve on ``port`` plus the rank until interrupted."""
    dist.init_process_group("gloo")
    model = served()
    with torch.inference_mode():
        for rows in (2, 3):
            model(torch.zeros(rows, FEATURES))
    dist.barrier()
    place = port + dist.get_rank()
    server = ThreadingHTTPServer(("127.0.0.1", place), handler(model))
    print(f"replica {dist.get_rank()} answers on port {place}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    typer.run(main)
