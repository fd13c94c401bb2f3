"""From tokens to an answer: content, reasoning and tool calls, as they come."""
