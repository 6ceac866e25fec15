"""Serve the page, an exported model and onnxruntime-web on this machine only.

    npm install
    python serve.py model.onnx

The page loads nothing from elsewhere. Its headers forbid it.
"""

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import onnxruntime

HERE = Path(__file__).parent
RUNTIME = Path("node_modules") / "onnxruntime-web" / "dist"
TYPES = {
    ".css": "text/css",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript",
    ".json": "application/json",
    ".mjs": "text/javascript",
    ".onnx": "application/octet-stream",
    ".wasm": "application/wasm",
}
POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; connect-src 'self'; "
    "style-src 'self'; img-src 'self' data: blob:; base-uri 'none'; form-action 'none'"
)


def facts_of(model: Path) -> bytes:
    """The metadata of an exported model as JSON."""
    stored = onnxruntime.InferenceSession(str(model)).get_modelmeta().custom_metadata_map
    keys = ("model", "preprocessing", "class_names")
    return json.dumps({key: json.loads(stored[f"saccade.{key}"]) for key in keys}).encode()


def files_of(model: Path, runtime: Path) -> dict[str, Path]:
    """The file of every address."""
    page = {f"/{name}": HERE / name for name in ("main.js", "preprocess.js", "style.css")}
    parts = {f"/ort/{path.name}": path for path in runtime.glob("ort*") if path.suffix in TYPES}
    return {"/": HERE / "index.html", "/model.onnx": model, **page, **parts}


def make_server(model: Path, runtime: Path, port: int) -> ThreadingHTTPServer:
    """A server for this machine; it answers nothing but the page and its parts."""
    files, facts = files_of(model, runtime), facts_of(model)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Send a file."""
            path = self.path.partition("?")[0]
            if path == "/model.json":
                self.reply(facts, ".json")
            elif path in files:
                self.reply(files[path].read_bytes(), files[path].suffix)
            else:
                self.send_error(404)

        def reply(self, content: bytes, suffix: str) -> None:
            """Send content of a type."""
            self.send_response(200)
            self.send_header("Content-Type", TYPES[suffix])
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Content-Security-Policy", POLICY)
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="a file written by saccade export")
    parser.add_argument("--runtime", type=Path, default=HERE / RUNTIME, help="onnxruntime-web/dist")
    parser.add_argument("--port", type=int, default=8000)
    words = parser.parse_args()
    if not (words.runtime / "ort.wasm.min.mjs").exists():
        parser.error(f"{words.runtime} has no onnxruntime-web: run npm install in {HERE}")
    server = make_server(words.model, words.runtime, words.port)
    print(f"http://127.0.0.1:{server.server_address[1]}/  (Ctrl-C ends it)", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


if __name__ == "__main__":
    main()
