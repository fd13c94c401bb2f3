// Talks to the server that the page came from.

/** An answer that is no answer; `status` is 0 where the server was not reached. */
export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

function headers(apiKey) {
  const found = { "Content-Type": "application/json" };
  if (apiKey) found.Authorization = `Bearer ${apiKey}`;
  return found;
}

/** Return {state, detail, progress}: "ok", "loading", "failed", "draining" or "away". */
export async function health() {
  try {
    const body = await (await fetch("/health", { cache: "no-store" })).json();
    return { state: body.status, detail: body.detail ?? "", progress: body.progress ?? null };
  } catch {
    return { state: "away", detail: "", progress: null };
  }
}

/** Return the name and context of the model served. */
export async function model(apiKey) {
  const answer = await fetch("/v1/models", { headers: headers(apiKey) });
  if (!answer.ok) throw await errorOf(answer);
  return (await answer.json()).data[0];
}

/** Yield {content, reasoning, usage, finish} as they come. */
export async function* chat(body, apiKey, signal) {
  let answer;
  try {
    answer = await fetch("/v1/chat/completions", {
      method: "POST",
      headers: headers(apiKey),
      body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached.", 0);
  }
  if (!answer.ok) throw await errorOf(answer);
  for await (const data of events(answer.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(chunk.error.message, answer.status);
    const choice = chunk.choices[0];
    yield {
      content: choice?.delta.content ?? "",
      reasoning: choice?.delta.reasoning ?? "",
      finish: choice?.finish_reason ?? null,
      usage: chunk.usage ?? null,
    };
  }
}

async function errorOf(answer) {
  try {
    return new ApiError((await answer.json()).error.message, answer.status);
  } catch {
    return new ApiError(`The server answered ${answer.status}.`, answer.status);
  }
}

/** Yield the data of server-sent events. */
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  while (true) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6));
      if (data.length) yield data.join("\n");
    }
  }
}
