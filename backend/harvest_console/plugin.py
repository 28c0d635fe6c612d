"""Harvest inside a Litestar application of your own: workers, a client, and the console below a path."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

from litestar import Litestar, asgi
from litestar.config.app import AppConfig
from litestar.di import Provide
from litestar.plugins import InitPlugin
from litestar.types import Guard, Receive, Scope, Send

from harvest import Harvest, WorkerOptions, running
from harvest.errors import ConfigurationError
from harvest.operations import signin
from harvest.shards import ShardRouter
from harvest_console import settings as configuration
from harvest_console.app import Console, create_app
from harvest_console.live import Hub
from harvest_console.settings import TOKEN_LENGTH, Settings
from harvest_console.tokens import DEFAULT_DATA_DIR

_log = logging.getLogger("harvest.embedding")
# What the surrounding application has put into the scope, and the console's own Litestar would take for its own.
_FOREIGN: Final = frozenset({"app", "litestar_app", "route_handler", "path_template", "session", "user", "auth"})


class HarvestPlugin(InitPlugin):
    """`Litestar(plugins=[HarvestPlugin(app)])`: a client, workers and the console in one web application.

    Handlers may ask for the connected client by a parameter `harvest: Harvest`; it is there from before the
    application's own lifespan begins until after that has ended.

    `urls`, `router`, `workers`, `options` and `migrate` are those of `harvest.running`. With `console`, pages and API
    are served below `path`; `guards` of the application stand before the console's own sign-in. `admin_token` and
    `secret_key` are by default those of HARVEST_ADMIN_TOKEN and HARVEST_SECRET_KEY, the key else one kept in
    `data_dir`. Without an admin token the console answers on this machine's own names only. Raises ConfigurationError
    for a path or a token that cannot be.
    """

    def __init__(
        self,
        app: Harvest,
        *,
        urls: Mapping[int, str] | str | None = None,
        workers: int = 1,
        options: WorkerOptions | None = None,
        migrate: bool = False,
        console: bool = True,
        path: str = "/harvest",
        guards: Sequence[Guard] = (),
        admin_token: str | None = None,
        secret_key: bytes | None = None,
        data_dir: Path = Path(DEFAULT_DATA_DIR),
        router: ShardRouter | None = None,
    ) -> None:
        self.app = app
        self.path = _checked_path(path)
        self._urls = urls
        self._router = router
        self._workers = workers
        self._options = options
        self._migrate = migrate
        self._guards = list(guards)
        self._admin_token = _checked_token(admin_token)
        self._secret_key = secret_key
        self._data_dir = data_dir
        self._wants_console = console
        self._console: Console | None = None

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        """Add the lifespan, the dependency `harvest` and the console's routes."""
        app_config.lifespan = [self._lifespan, *app_config.lifespan]
        app_config.dependencies = {"harvest": Provide(self._client, sync_to_thread=False), **app_config.dependencies}
        if self._wants_console:
            app_config.route_handlers = [*app_config.route_handlers, self._mount()]
        return app_config

    async def signin_link(self, address: str) -> str:
        """A link that signs one browser in to the console, once and within 10 minutes.

        `address` is where the application is reached, like https://shop.example. Raises ShardUnavailableError when no
        shard answers.
        """
        return await signin.create_link(self._serving().state.shards, address.rstrip("/") + self.path)

    def _client(self) -> Harvest:
        return self.app

    @asynccontextmanager
    async def _lifespan(self, _: Litestar) -> AsyncIterator[None]:
        async with running(
            self.app,
            self._urls,
            workers=self._workers,
            options=self._options,
            migrate=self._migrate,
            router=self._router,
        ):
            if not self._wants_console:
                yield
                return
            self._console = create_app(self._settings())
            try:
                async with self._console.lifespan():
                    hub: Hub = self._console.state.hub
                    with _at_signal(hub.close):
                        yield
            finally:
                self._console = None

    def _settings(self) -> Settings:
        """Settings as `harvest serve` makes them; the host tells only whether other machines are let in."""
        return Settings(
            urls=self.app.databases,
            secret_key=self._secret_key or configuration.secret_key(os.environ, self._data_dir),
            host="127.0.0.1" if self._admin_token is None else "0.0.0.0",
            admin_token=self._admin_token,
            token_signin=self._admin_token is not None,
            data_dir=self._data_dir,
            base_path=self.path,
            router=self.app.router,
            usage_ceiling_days=configuration.usage_ceiling_days(os.environ),
            canary=configuration.canary(os.environ),
        )

    def _mount(self) -> Any:
        @asgi(
            self.path,
            is_mount=True,
            copy_scope=True,
            guards=self._guards,
            exclude_from_csrf=True,  # the console has tokens of its own
        )
        async def harvest_console(scope: Scope, receive: Receive, send: Send) -> None:
            await self._serving()(_inner_scope(scope, self.path), receive, send)

        return harvest_console

    def _serving(self) -> Console:
        if self._console is None:
            raise ConfigurationError(
                "the console is not running: the application's lifespan has not begun or has ended"
            )
        return self._console


def _inner_scope(scope: Scope, path: str) -> Scope:
    """The scope as the console gets it: whole path, and nothing that the application around it has noted."""
    inner: Any = {key: value for key, value in scope.items() if key not in _FOREIGN}
    whole = path + scope["path"]
    inner.update({"path": whole, "raw_path": scope.get("raw_path") or whole.encode(), "path_params": {}, "state": {}})
    found: Scope = inner
    return found


@contextmanager
def _at_signal(close: Callable[[], Any]) -> Iterator[None]:
    """Call `close` when this process is told to end, before the server's own handler is.

    Servers wait for open responses before they end the lifespan: an event stream that waits for the lifespan's end
    would hold them up for ever. Does nothing outside of the main thread, and where no handler is set.
    """
    before: dict[int, Callable[[int, FrameType | None], Any]] = {}
    closing: list[asyncio.Task[Any]] = []
    loop = asyncio.get_running_loop()

    def begin() -> None:
        closing.append(loop.create_task(close()))

    def handle(signum: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(begin)
        before[signum](signum, frame)

    if threading.current_thread() is threading.main_thread():
        for each in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(each)
            if callable(handler):
                before[each] = handler
                signal.signal(each, handle)
    try:
        yield
    finally:
        for number, known in before.items():
            if signal.getsignal(number) is handle:
                signal.signal(number, known)


def _checked_path(path: str) -> str:
    if not path.startswith("/") or not path.strip("/") or "{" in path:
        raise ConfigurationError(
            f"path is {path!r}; it must begin with a slash, be more than that, and have no parameter"
        )
    return path.rstrip("/")


def _checked_token(token: str | None) -> str | None:
    found = token or os.environ.get("HARVEST_ADMIN_TOKEN") or None
    if found is not None and len(found) < TOKEN_LENGTH:
        raise ConfigurationError(
            f"the admin token has {len(found)} characters; it must be a secret of at least {TOKEN_LENGTH}"
        )
    return found
