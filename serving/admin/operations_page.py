"""The operations page: static files of this package, with headers that let a browser run nothing else."""

from pathlib import Path

from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles
from starlette.responses import FileResponse, Response
from starlette.types import Scope

PAGE = Path(__file__).parent / "page"

# Names in the state come from outside. The page shows them as text alone, and if it ever did not, nothing would run:
# there is no inline script, no other origin, and no way to make HTML of a string.
_POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    # A gateway of a newer release must not be shown by an older one's files.
    "cache-control": "no-cache",
}


class _Files(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(_HEADERS)
        return response


def serve_page(app: FastAPI, folder: Path = PAGE) -> None:
    """Serves the page at `/` and its files below `/page`.

    Args:
        app: The admin port's application.
        folder: The page's files, of which `index.html` is the page.
    """

    async def index() -> Response:
        return FileResponse(folder / "index.html", headers=_HEADERS)

    app.add_api_route("/", index, methods=["GET", "HEAD"], include_in_schema=False)
    app.mount("/page", _Files(directory=folder))
