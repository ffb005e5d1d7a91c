"""What POST /v1/chat/completions takes and answers, without streams and tools: as much as a summary needs."""

import time
from collections.abc import Mapping
from typing import Any

from openai.types.chat import ChatCompletionMessageParam
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming

from cas_session.testing.replies import Reply, as_json, echo, new_id, parts_of
from cas_session.testing.strict import InvalidRequestError, check_messages, check_parameters

BYTES_PER_TOKEN = 4  # the usual rule of thumb for English text


def check_chat(body: Mapping[str, Any]) -> None:
    """Refuse what the API refuses, and what this endpoint does not speak."""
    check_parameters(body, CompletionCreateParamsNonStreaming)
    check_messages(body["messages"], ChatCompletionMessageParam)
    for name in ("input", "tools"):
        if body.get(name):
            raise InvalidRequestError(f"Unknown parameter: '{name}'.", param=name, code="unknown_parameter")


def chat_completion(body: Mapping[str, Any], reply: Reply | None) -> dict[str, Any]:
    """The texts of the reply as a chat completion; without a reply, what was heard last."""
    said = reply if reply is not None else echo(body["messages"][-1])
    text = "".join(part["text"] for item in said.output for part in parts_of(item))
    heard, spoken = (-(-len(as_json(value)) // BYTES_PER_TOKEN) for value in (body["messages"], text))
    heard = heard if said.input_tokens is None else said.input_tokens
    spoken = spoken if said.output_tokens is None else said.output_tokens
    return {
        "id": new_id("chatcmpl"),
        "object": "chat.completion",
        "created": int(time.time()),
        "model": body["model"],
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": heard,
            "completion_tokens": spoken,
            "total_tokens": heard + spoken,
        },
    }
