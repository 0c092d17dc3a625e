"""An MCP server over standard input and output, with one tool."""

from __future__ import annotations

from mcp.server.fastmcp import FastMCP

server = FastMCP("notes")


@server.tool()
def shout(text: str) -> str:
    """Returns the text in capital letters."""
    return text.upper()


if __name__ == "__main__":
    server.run()
