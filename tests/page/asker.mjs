// An agent of the Agent Client Protocol that asks before it does anything, or waits or counts until it is told to stop.
import readline from 'node:readline';

const say = (message) => process.stdout.write(`${JSON.stringify({ jsonrpc: '2.0', ...message })}\n`);
const update = (sessionId, update_) => say({ method: 'session/update', params: { sessionId, update: update_ } });
const words = (sessionId, text) => update(sessionId, { sessionUpdate: 'agent_message_chunk', content: { type: 'text', text } });
/** What is asked of the person, by the id of the question, and the turn that waits for the cancel. */
const asked = new Map();
let waiting = null;
let questions = 0;

const OPTIONS = [
  { optionId: 'yes', name: 'Allow once', kind: 'allow_once' },
  { optionId: 'ever', name: 'Always allow', kind: 'allow_always' },
  { optionId: 'no', name: 'Reject', kind: 'reject_once' },
];

function prompt(id, { sessionId, prompt: parts }) {
  const text = parts.map((part) => part.text ?? '').join('');
  const end = (stopReason) => say({ id, result: { stopReason } });
  if (text.includes('hello')) {
    words(sessionId, 'hello');
    end('end_turn');
  } else if (text === 'edit') {
    // A tool that was called, with the change that it made.
    const content = [{ type: 'content', content: { type: 'text', text: '--- a/notes\n+++ b/notes\n@@ -1 +1 @@\n-old <i>line</i>\n+new line' } }];
    const call = { toolCallId: 'edit-1', title: 'Edit notes', kind: 'edit', rawInput: { path: 'notes' } };
    update(sessionId, { sessionUpdate: 'tool_call', ...call, status: 'in_progress' });
    update(sessionId, { sessionUpdate: 'tool_call_update', toolCallId: 'edit-1', status: 'completed', content });
    words(sessionId, 'edited');
    end('end_turn');
  } else if (text === 'count') {
    let count = 0;
    const timer = setInterval(() => words(sessionId, `word ${count += 1}. `), 200);
    waiting = () => {
      clearInterval(timer);
      end('cancelled');
    };
  } else if (text === 'wait') {
    words(sessionId, 'waiting');
    waiting = () => end('cancelled');
  } else {
    questions += 1;
    const question = `q${questions}`;
    asked.set(question, ({ outcome }) => {
      words(sessionId, `chosen: ${outcome.optionId ?? 'nothing'}`);
      end('end_turn');
    });
    const toolCall = { toolCallId: question, title: 'Remove <i>build</i>?', kind: 'delete', status: 'pending', rawInput: { path: 'build' } };
    say({ id: question, method: 'session/request_permission', params: { sessionId, toolCall, options: OPTIONS } });
  }
}

readline.createInterface({ input: process.stdin }).on('line', (line) => {
  const { id, method, params, result } = JSON.parse(line);
  if (method === 'initialize') say({ id, result: { protocolVersion: 1, agentCapabilities: {}, authMethods: [] } });
  else if (method === 'session/new') say({ id, result: { sessionId: 's' } });
  else if (method === 'session/prompt') prompt(id, params);
  else if (method === 'session/cancel') {
    waiting?.();
    waiting = null;
  } else if (asked.has(id)) {
    asked.get(id)(result);
    asked.delete(id);
  } else if (method && id !== undefined) say({ id, error: { code: -32601, message: 'no such method' } });
});
