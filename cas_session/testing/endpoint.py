"""A local HTTP endpoint that speaks POST /v1/responses, /v1/responses/compact and /v1/chat/completions.

One implementation for the demonstration and for all tests, reached through the real clients. It has the
real wire format, is as strict as the API that it stands for (see `strict`), and can fail, be slow and be
stopped on demand.
"""

import asyncio
import contextlib
import hashlib
import hmac
import json
import secrets
import socket
import struct
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self

import uvicorn
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from openai.types.responses import Response as ModelResponse
from openai.types.responses.response_compact_params import ResponseCompactParams
from openai.types.responses.response_create_params import ResponseCreateParams
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from cas_session.testing.chat import BYTES_PER_TOKEN, chat_completion, check_chat
from cas_session.testing.replies import (
    Reply,
    as_json,
    echo,
    function_call,
    message,
    new_id,
    parts_of,
    reasoning,
    server_sent,
)
from cas_session.testing.strict import (
    InvalidRequestError,
    Item,
    check_items,
    check_links,
    check_parameters,
    item_type,
)

__all__ = [
    "Fault",
    "Hold",
    "LoggedRequest",
    "Reply",
    "ResponsesEndpoint",
    "function_call",
    "message",
    "reasoning",
]

PathName = Literal["responses", "compact", "chat"]

PATHS: dict[str, PathName] = {
    "/v1/responses": "responses",
    "/v1/responses/compact": "compact",
    "/v1/chat/completions": "chat",
}
ID_PREFIXES = {"message": "msg", "function_call": "fc", "custom_tool_call": "ctc", "reasoning": "rs"}
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER on, zero seconds: close() sends RST


@dataclass(eq=False)
class LoggedRequest:
    """One request, logged when it arrives.

    `status` is what was answered: None while there is no answer, and for good if the connection broke
    instead. `billed` says whether the model's work was done, answered or not.
    """

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any] | None
    status: int | None = None
    billed: bool = False


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What one request gets instead of its answer. `billed=True`: after the model's work was done."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: Literal["reset", "truncate", "hang"] | None = None
    billed: bool = False

    @classmethod
    def error(cls, status: int, *, code: str | None = None, message: str = "A fault on demand.") -> Self:
        """Any status, with the API's error body."""
        kind = "server_error" if status >= 500 else "invalid_request_error"
        error = {"message": message, "type": kind, "param": None, "code": code}
        return cls(status=status, body=as_json({"error": error}))

    @classmethod
    def server_error(cls) -> Self:
        """HTTP 500."""
        return cls.error(500, message="The server had an error while processing your request.")

    @classmethod
    def rate_limited(cls, *, retry_after_s: float = 1) -> Self:
        """HTTP 429 with Retry-After."""
        limited = cls.error(429, code="rate_limit_exceeded", message="Rate limit reached.")
        return replace(limited, headers={"retry-after": f"{retry_after_s:g}"})

    @classmethod
    def context_too_long(cls) -> Self:
        """HTTP 400, the input does not fit the model's context window."""
        message = "Your input exceeds the context window of this model."
        return cls.error(400, code="context_length_exceeded", message=message)

    @classmethod
    def not_found(cls) -> Self:
        """The plain 404 of a server that has no such endpoint."""
        return cls(status=404, body=b"404 page not found", content_type="text/plain")

    @classmethod
    def not_allowed(cls) -> Self:
        """The plain 405 of a server that knows the path for another method."""
        return cls(status=405, body=b"Method Not Allowed", content_type="text/plain")

    @classmethod
    def output(cls, output: object) -> Self:
        """A compaction whose `output` is this value: an empty list, None, something that is no list."""
        body = {"id": new_id("resp"), "object": "response.compaction", "created_at": int(time.time())}
        return cls(body=as_json(body | {"output": output, "usage": _usage(0, 0)}), billed=True)

    @classmethod
    def empty_object(cls) -> Self:
        """HTTP 200 with the body {}."""
        return cls(body=b"{}", billed=True)

    @classmethod
    def not_json(cls) -> Self:
        """HTTP 200 that says it is JSON, and is not."""
        return cls(body=b"<html>upstream request timeout</html>", billed=True)

    @classmethod
    def truncated(cls) -> Self:
        """The right answer, of which half arrives before the connection closes."""
        return cls(cut="truncate", billed=True)

    @classmethod
    def reset(cls, *, billed: bool = False) -> Self:
        """The connection is reset before any byte of an answer."""
        return cls(cut="reset", billed=billed)

    @classmethod
    def hang(cls) -> Self:
        """No answer ever; the request ends when the client goes away."""
        return cls(cut="hang")

    def instead_of(self, answer: Response | None) -> Response:
        """The response that goes out; `answer` is the right one where the work was done."""
        if self.cut is not None:
            return _CutResponse(self.cut, answer)
        return Response(self.body, self.status, headers=dict(self.headers), media_type=self.content_type)


class Hold:
    """Requests on one path, stopped before they are answered."""

    def __init__(self) -> None:
        self._arrivals: asyncio.Queue[LoggedRequest] = asyncio.Queue()
        self._released = asyncio.Event()

    async def arrived(self, *, timeout_s: float = 10.0) -> LoggedRequest:
        """The next request that is held, each one once, in the order of arrival.

        Raises:
            TimeoutError: None came; a test that waits for ever would not say why.
        """
        async with asyncio.timeout(timeout_s):
            return await self._arrivals.get()

    def release(self) -> None:
        """Let the held requests go on, and later ones through."""
        self._released.set()

    async def keep(self, request: LoggedRequest) -> None:
        """Stop this request until the release."""
        self._arrivals.put_nowait(request)
        await self._released.wait()


class ResponsesEndpoint:
    """The endpoint; it listens on loopback while its `async with` block runs.

    Args:
        latency_s: How long /responses and /chat/completions take; may be set at any time, like the next one.
        compact_latency_s: How long /responses/compact takes.
        keep_user_messages: False gives the compaction item alone, as some providers do.
        padding_bytes: By how much the opaque content is longer than it has to be.
    """

    def __init__(
        self,
        *,
        latency_s: float = 0.0,
        compact_latency_s: float = 0.0,
        keep_user_messages: bool = True,
        padding_bytes: int = 0,
    ) -> None:
        self.latency_s = latency_s
        self.compact_latency_s = compact_latency_s
        self.keep_user_messages = keep_user_messages
        self.padding_bytes = padding_bytes
        self.requests: list[LoggedRequest] = []
        self.base_url = ""
        self._key = secrets.token_bytes()
        self._faults: dict[PathName, deque[Fault]] = {path: deque() for path in PATHS.values()}
        self._holds: dict[PathName, list[Hold]] = {path: [] for path in PATHS.values()}
        self._replies: deque[Reply] = deque()
        self._sealed: dict[str, list[Item]] = {}
        self._stored: dict[str, list[Item]] = {}
        self._made_with: dict[str, str] = {}
        self._state = ServerState()
        self._server: asyncio.Server | None = None

    def client(self, *, max_retries: int = 0, timeout_s: float = 10.0) -> AsyncOpenAI:
        """A real client of this endpoint, whatever proxy the environment names."""
        return AsyncOpenAI(
            base_url=self.base_url,
            api_key="test",
            max_retries=max_retries,
            timeout=timeout_s,
            http_client=DefaultAsyncHttpxClient(trust_env=False),
        )

    @property
    def compact_requests(self) -> list[LoggedRequest]:
        """Those of the logged requests that asked for a compaction."""
        return [request for request in self.requests if PATHS.get(request.path) == "compact"]

    def fail_next(self, fault: Fault, *, path: PathName, times: int = 1) -> None:
        """Let the next requests on the path fail; a client that retries uses up one each time."""
        self._faults[path].extend([fault] * times)

    def reply_with(self, *replies: Reply) -> None:
        """Say what the model replies to the next requests but compactions, in this order.

        Without any it tells what it heard last: "You said: hello".
        """
        self._replies.extend(replies)

    @contextlib.asynccontextmanager
    async def hold(self, path: PathName) -> AsyncIterator[Hold]:
        """Stop the requests on the path before they are answered, at the latest until the block ends."""
        hold = Hold()
        self._holds[path].append(hold)
        try:
            yield hold
        finally:
            hold.release()
            self._holds[path].remove(hold)

    def seal(self, items: Sequence[Item]) -> str:
        """Opaque content that stands for these items, as this server alone makes and reads it."""
        code = hmac.new(self._key, as_json(items), hashlib.sha256).hexdigest()
        sealed = f"gAAAAA{code}{'A' * self.padding_bytes}=="
        self._sealed[sealed] = list(items)
        return sealed

    def unseal(self, encrypted_content: str) -> list[Item]:
        """All items that an opaque content covers, oldest first, through earlier compactions.

        Raises:
            InvalidRequestError: This server did not make it.
        """
        if encrypted_content not in self._sealed:
            raise InvalidRequestError(
                f"The encrypted content {encrypted_content[:4]}...{encrypted_content[-4:]} could not be"
                " verified. Reason: Encrypted content could not be decrypted or parsed.",
                code="invalid_encrypted_content",
            )
        return list(self._sealed[encrypted_content])

    async def __aenter__(self) -> Self:
        app = Starlette(routes=[Route("/{path:path}", self._serve, methods=["GET", "POST", "DELETE"])])
        config = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False)
        config.load()
        connect = partial(_Connection, config=config, server_state=self._state, app_state={})
        self._server = await asyncio.get_running_loop().create_server(connect, host="127.0.0.1", port=0)
        self.base_url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for connection in list(self._state.connections):
            connection.transport.abort()
        await asyncio.gather(*self._state.tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, request: Request) -> Response:
        text = await request.body()
        try:
            body = json.loads(text)
        except ValueError:
            body = None
        logged = LoggedRequest(
            request.url.path, dict(request.headers), body if isinstance(body, dict) else None
        )
        self.requests.append(logged)
        response = await _unless_gone(request, self._answer(logged, request.method))
        response.headers["x-request-id"] = new_id("req")
        logged.status = None if isinstance(response, _CutResponse) else response.status_code
        return response

    async def _answer(self, logged: LoggedRequest, method: str) -> Response:
        path = PATHS.get(logged.path)
        if path is None or method != "POST":
            return _refusal(InvalidRequestError(f"Invalid URL ({method} {logged.path})", status=404))
        fault = self._faults[path].popleft() if self._faults[path] else None
        for hold in list(self._holds[path]):
            await hold.keep(logged)
        await asyncio.sleep(self.compact_latency_s if path == "compact" else self.latency_s)
        if fault is not None and not fault.billed:
            return fault.instead_of(None)
        try:
            answer = self._work(path, logged.body)
        except InvalidRequestError as error:
            return _refusal(error)
        logged.billed = True
        return fault.instead_of(answer) if fault is not None else answer

    def _work(self, path: PathName, body: dict[str, Any] | None) -> Response:
        if body is None:
            raise InvalidRequestError("We could not parse the JSON body of your request.")
        if path == "compact":
            return JSONResponse(self._compact(body))
        if path == "chat":
            check_chat(body)
            return JSONResponse(chat_completion(body, self._replies.popleft() if self._replies else None))
        response = self._respond(body)
        if body.get("stream"):
            return StreamingResponse(server_sent(response), media_type="text/event-stream; charset=utf-8")
        return JSONResponse(response)

    def _compact(self, body: dict[str, Any]) -> dict[str, Any]:
        check_parameters(body, ResponseCompactParams)
        context = self._context(body)
        kept = [_as_returned(item) for item in context if _is_from_user(item)]
        output = [*(kept if self.keep_user_messages else ()), self._compaction_item(context)]
        return {
            "id": new_id("resp"),
            "object": "response.compaction",
            "created_at": int(time.time()),
            "output": output,
            "usage": _usage(_tokens(context), _tokens(output)),
        }

    def _respond(self, body: dict[str, Any]) -> dict[str, Any]:
        check_parameters(body, ResponseCreateParams)
        context = self._context(body)
        if item_type(context[-1]) == "compaction_trigger":
            context.pop()
            reply = Reply.of(self._compaction_item(context))
        else:
            reply = self._replies.popleft() if self._replies else echo(context[-1])
        output = [self._identified(item) for item in reply.output]
        self._bind_to_reasoning(output)
        if any(_tokens(context) > limit for limit in _compact_thresholds(body)):
            output.insert(0, self._compaction_item(context))
        usage = _usage(
            _tokens(context) if reply.input_tokens is None else reply.input_tokens,
            _tokens(output) if reply.output_tokens is None else reply.output_tokens,
        )
        response = _response_object(body, output, usage)
        if body.get("store") is not False:
            self._stored[response["id"]] = [*context, *output]
        return response

    def _context(self, body: dict[str, Any]) -> list[Item]:
        """Everything that the model would see, the stored chain first, once all of it is found valid."""
        given = body.get("input") or []
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        check_items(items)
        if body.get("conversation") is not None:
            raise InvalidRequestError("Conversation not found.", param="conversation", status=404)
        previous = body.get("previous_response_id")
        if previous is not None and previous not in self._stored:
            raise InvalidRequestError(
                f"Previous response with id '{previous}' not found.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        context = [*(self._stored[previous] if previous is not None else ()), *items]
        if not context:
            raise InvalidRequestError(
                "One of 'input' or 'previous_response_id' must be provided.",
                param="input",
                code="missing_required_parameter",
            )
        for item in items:
            if item.get("encrypted_content") is not None:
                self.unseal(item["encrypted_content"])
        check_links(context, self._made_with)
        return context

    def _compaction_item(self, context: Sequence[Item]) -> Item:
        return {
            "type": "compaction",
            "id": new_id("cmp"),
            "encrypted_content": self.seal(self._covered(context)),
            "created_by": "server",
        }

    def _covered(self, context: Sequence[Item]) -> list[Item]:
        """The items of the context with every compaction item replaced by what it covers.

        The user messages that a compaction kept verbatim stand before it and are inside it: once is enough.
        """
        covered: list[Item] = []
        for item in context:
            if item_type(item) != "compaction":
                covered.append(item)
                continue
            inside = self.unseal(item["encrypted_content"])
            covered = [*_without_copies(covered, inside), *inside]
        return covered

    def _identified(self, item: Item) -> Item:
        kind = item_type(item)
        if kind == "reasoning":
            item = {**item, "encrypted_content": self.seal([item])}
        return {"id": new_id(ID_PREFIXES.get(kind, kind)), **item}

    def _bind_to_reasoning(self, output: Sequence[Item]) -> None:
        thought: str | None = None
        for item in output:
            if item["type"] == "reasoning":
                thought = item["id"]
            elif thought is not None:
                self._made_with[item["id"]] = thought


class _Connection(H11Protocol):
    """uvicorn's protocol, with the transport in the request's state so that a fault can cut it."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {"transport": transport}


class _CutResponse(Response):
    """No whole answer: the connection is reset, closed half-way, or left hanging."""

    def __init__(self, cut: Literal["reset", "truncate", "hang"], answer: Response | None = None) -> None:
        super().__init__()
        self._cut = cut
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        transport: asyncio.Transport = scope["state"]["transport"]
        if self._cut == "truncate" and self._answer is not None:
            content = await _content(self._answer)
            head = Response(status_code=self._answer.status_code, media_type=self._answer.media_type)
            head.headers["content-length"] = str(len(content))
            await send({"type": "http.response.start", "status": 200, "headers": head.raw_headers})
            await send(
                {"type": "http.response.body", "body": content[: len(content) // 2], "more_body": True}
            )
            transport.close()
        elif self._cut == "reset":
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            transport.abort()
        await _gone(receive)


async def _content(answer: Response) -> bytes:
    if isinstance(answer, StreamingResponse):
        return b"".join([bytes(chunk) async for chunk in answer.body_iterator])  # type: ignore[arg-type]
    return bytes(answer.body)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _unless_gone(request: Request, answer: Awaitable[Response]) -> Response:
    """The answer, or an empty one as soon as the client is gone: it closed the socket or was killed."""
    answering = asyncio.ensure_future(answer)
    gone = asyncio.ensure_future(_gone(request.receive))
    try:
        await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
        return answering.result() if answering.done() else _CutResponse("hang")
    finally:
        answering.cancel()
        gone.cancel()
        await asyncio.gather(answering, gone, return_exceptions=True)


def _refusal(error: InvalidRequestError) -> Response:
    return JSONResponse({"error": error.error}, error.status)


def _tokens(items: Sequence[Item]) -> int:
    return -(-len(as_json(items)) // BYTES_PER_TOKEN)


def _usage(input_tokens: int, output_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": input_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": input_tokens + output_tokens,
    }


def _is_from_user(item: Item) -> bool:
    return item_type(item) == "message" and item.get("role") == "user"


def _said(item: Item) -> bytes:
    """What makes two user messages the same, one as sent and the other as returned by a compaction."""
    parts = [sorted((k, v) for k, v in part.items() if v not in (None, "auto")) for part in parts_of(item)]
    return as_json(parts)


def _without_copies(items: Sequence[Item], originals: Sequence[Item]) -> list[Item]:
    """The items, less one for each user message among the originals."""
    copies = Counter(_said(item) for item in originals if _is_from_user(item))
    rest = []
    for item in items:
        said = _said(item) if _is_from_user(item) else b""
        copies[said] -= 1
        if copies[said] < 0:
            rest.append(item)
    return rest


def _as_returned(item: Item) -> Item:
    """A user message as a compaction returns it: with an id, and with all keys of images and files."""
    blank: dict[str, Item] = {
        "input_image": {"detail": "auto", "file_id": None, "image_url": None},
        "input_file": {"file_data": None, "file_id": None, "file_url": None, "filename": None},
    }
    parts = [blank.get(part["type"], {}) | part for part in parts_of(item)]
    return {"id": new_id("msg"), "type": "message", "status": "completed", "role": "user", "content": parts}


def _compact_thresholds(body: Mapping[str, Any]) -> Iterator[int]:
    for entry in body.get("context_management") or ():
        if entry["type"] == "compaction" and entry.get("compact_threshold") is not None:
            yield entry["compact_threshold"]


def _response_object(body: Mapping[str, Any], output: list[Item], usage: dict[str, Any]) -> dict[str, Any]:
    echoed = {name: value for name, value in body.items() if name in ModelResponse.model_fields}
    return {
        "id": new_id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        **echoed,
        "output": output,
        "usage": usage,
    }
