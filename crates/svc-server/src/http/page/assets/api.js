// Requests to the daemon. The cookie goes with them by itself; the header says that it is this page that asks.

export class ApiError extends Error {
  constructor(status, problem) {
    super(problem?.detail ?? `The daemon answers ${status}.`);
    this.status = status;
    this.code = problem?.code;
  }
}

export const PAGE = { 'Svc-Page': '1' };

export async function api(method, path, body, headers = {}) {
  const init = { method, headers: { ...PAGE, Accept: 'application/json', ...headers } };
  if (body !== undefined) {
    init.headers['Content-Type'] = 'application/json';
    init.body = JSON.stringify(body);
  }
  let reply;
  try {
    reply = await fetch(path, init);
  } catch {
    throw new ApiError(0, { detail: 'The daemon does not answer.' });
  }
  const text = await reply.text();
  let value = null;
  try {
    value = text ? JSON.parse(text) : null;
  } catch {
    value = text;
  }
  if (!reply.ok) throw new ApiError(reply.status, value);
  return value;
}

export const get = (path) => api('GET', path);
export const post = (path, body = {}) => api('POST', path, body);

export function query(path, parameters) {
  const set = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== '');
  return set.length ? `${path}?${new URLSearchParams(set)}` : path;
}

/** Calls a tool, as an agent would. */
export async function callTool(name, args) {
  const call = { jsonrpc: '2.0', id: 1, method: 'tools/call', params: { name, arguments: args } };
  const reply = await api('POST', '/mcp', call, { 'Svc-Expose': 'all' });
  if (reply.error) throw new ApiError(200, { detail: reply.error.message });
  const result = reply.result ?? {};
  if (result.isError) {
    const error = result.structuredContent?.error;
    throw new ApiError(200, { detail: error?.message ?? result.content?.[0]?.text ?? 'The tool failed.' });
  }
  return result.structuredContent ?? result.content;
}
