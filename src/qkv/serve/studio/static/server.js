// Requests to the server, and their errors.

const API = new URL("./api/", import.meta.url);

const KEY = "qkv-api-key"; // kept until the tab is closed

/** An error with a message for the reader. `status` is 0 if the server did not answer at all. */
export class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** Send this API key with every request. */
export function setKey(key) {
  sessionStorage.setItem(KEY, key);
}

const GONE = "The server does not answer. It may have been stopped: start it again with qkv studio, then try again.";

/** The JSON of an address. */
export async function get(path, signal) {
  return (await request(path, {signal})).json();
}

/** The JSON that the server returns for a body. */
export async function post(path, body, signal) {
  return (await send(path, body, signal)).json();
}

/** The lines of an answer that the server writes while it computes, as JSON. */
export async function* stream(path, body, signal) {
  const reader = (await send(path, body, signal)).body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  while (true) {
    const {value, done} = await reader.read().catch((error) => Promise.reject(asError(error)));
    if (done) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const record = JSON.parse(line);
      if (record.error) throw new ServerError(record.error.message, 500);
      yield record;
    }
  }
}

function send(path, body, signal) {
  return request(path, {
    method: "POST",
    headers: {"Content-Type": "application/json"},
    body: JSON.stringify(body),
    signal,
  });
}

async function request(path, options) {
  const key = sessionStorage.getItem(KEY);
  const headers = {...options.headers, ...(key ? {Authorization: `Bearer ${key}`} : {})};
  const response = await fetch(new URL(path, API), {...options, headers}).catch((error) => Promise.reject(asError(error)));
  if (response.ok) return response;
  const found = await response.json().catch(() => null);
  throw new ServerError(found?.error?.message ?? `The server answered with status ${response.status}.`, response.status);
}

function asError(error) {
  return error.name === "AbortError" ? error : new ServerError(GONE, 0);
}
