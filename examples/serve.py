"""Recommendations over HTTP with the standard library alone.

    dubnb fit --data simulated --method dub-x --out m.npz
    python examples/serve.py m.npz --port 8000

    curl 'localhost:8000/recommend?user=7&k=5'
    curl 'localhost:8000/new?items=3,8,21&labels=1,1,0&k=5'      # a user that the model has never seen
    curl 'localhost:8000/similar?item=3&k=5'
    curl 'localhost:8000/health'

One process, one thread per request; put a real server in front of it where the public can reach it.
"""

import argparse
import contextlib
import json
import re
import sys
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import dubnb

MOST = 1000  # items of a list
IDLE_SECONDS = 10  # after which a connection that sends nothing is closed, so that it does not hold a thread


class Refused(ValueError):
    """A request that cannot be answered."""


def parse_ids(text, ids):
    """Comma-separated ids in the model's kind, int or str."""
    parts = [part for part in text.split(",") if part]
    if ids.kind == "str":
        return parts
    for part in parts:
        if not re.fullmatch("-?[1-9][0-9]{0,19}|0", part):  # int() would also take 007, 1_0 and Arabic digits
            raise Refused(f"{part[:60]!r} is not a whole number, and this model's ids are whole numbers")
    return [int(part) for part in parts]


def parse_id(query, name, ids):
    """The one id that the parameter `name` holds; a text may contain commas."""
    text = query.get(name, "")
    found = [text] if text and ids.kind == "str" else parse_ids(text, ids)
    if len(found) != 1:
        raise Refused(f"{name}={text[:60]!r} must be one id, such as {name}={ids.values[0]}")
    return found[0]


def parse_labels(text):
    """Comma-separated decimal numbers; none in an empty text."""
    parts = text.split(",") if text else []
    if not all(re.fullmatch(r"-?[0-9]{1,9}(\.[0-9]{1,9})?", part) for part in parts):  # float() would take 1_0 and nan
        raise Refused(f"labels={text[:60]!r} must be numbers separated by commas, such as labels=1,0")
    return [float(part) for part in parts]


def listed(items, scores):
    """A list as JSON can hold it, without padding."""
    return [{"item": item, "score": s} for item, s in zip(items.tolist(), scores.tolist(), strict=True) if s == s]


class Service:
    """The answers, apart from HTTP."""

    def __init__(self, model):
        self.model = model

    def answer(self, path, query):
        """The document for one request; `query` maps names to texts."""
        routes = {"/recommend": self.recommend, "/new": self.new, "/similar": self.similar, "/health": self.health}
        if path not in routes:
            raise Refused(f"{path[:60]!r} is none of {', '.join(routes)}")
        k = query.get("k", "10")
        if not re.fullmatch("[0-9]{1,4}", k) or not 1 <= int(k) <= MOST:
            raise Refused(f"k={k[:20]!r} must be a whole number from 1 to {MOST}")
        return routes[path](query, int(k))

    def recommend(self, query, k):
        user = parse_id(query, "user", self.model.user_ids_)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an unknown user is said in the answer
            lists = self.model.recommend([user], k=k)
        return {"user": user, "fallback": bool(lists.fallback[0]), "items": listed(lists[0][0], lists[1][0])}

    def new(self, query, k):
        items = parse_ids(query.get("items", ""), self.model.item_ids_)
        labels = parse_labels(query["labels"]) if "labels" in query else None
        return {"items": listed(*self.model.fold_in(items, labels).recommend(k))}

    def similar(self, query, k):
        items, likeness = self.model.similar_items([parse_id(query, "item", self.model.item_ids_)], k)
        return {"items": listed(items[0], likeness[0])}

    def health(self, query, k):
        return {"method": self.model.name, "users": len(self.model.user_ids_), "items": len(self.model.item_ids_)}


def handler_of(service):
    """A handler class for http.server."""

    class Handler(BaseHTTPRequestHandler):
        timeout = IDLE_SECONDS

        def do_GET(self):
            try:
                url = urlsplit(self.path)
                query = {name: values[-1] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
                status, document = 200, service.answer(url.path, query)
            except ValueError as error:  # Refused, and dubnb's InputError
                status, document = 400, {"error": str(error)}
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words):
            """Quiet; log in front of this server."""

    return Handler


class Server(ThreadingHTTPServer):
    """A thread per request."""

    request_queue_size = 128  # connections that wait; with Python's 5, the others try again only after a second

    def handle_error(self, request, client_address):
        """Print the traceback of an error, but nothing of a client that has gone."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def server_of(model, port=8000, host="127.0.0.1"):
    """A server that is not yet running; port 0 takes a free one."""
    return Server((host, port), handler_of(Service(model)))


def main():
    parser = argparse.ArgumentParser(description="Serve a saved model over HTTP.")
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=8000)
    args = parser.parse_args()
    with server_of(dubnb.load(args.model), args.port) as server:
        print(f"http://127.0.0.1:{server.server_address[1]}/recommend?user=0")
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


if __name__ == "__main__":
    main()
