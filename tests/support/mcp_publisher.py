"""An MCP server whose tool asks the user before it does its work; its name is the argument."""

from __future__ import annotations

import sys

from mcp.server.fastmcp import Context, FastMCP
from pydantic import BaseModel

server = FastMCP(sys.argv[1])


class Consent(BaseModel):
    sure: bool = True


@server.tool()
async def publish(text: str, ctx: Context) -> str:  # type: ignore[type-arg]
    """Publishes the text if the user agrees."""
    answer = await ctx.elicit(f"publish {text}?", Consent)
    return f"{text}: {answer.action}"


if __name__ == "__main__":
    server.run()
