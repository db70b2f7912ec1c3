// An MCP server over standard input with one tool, which a file may describe.
import fs from 'node:fs';
import readline from 'node:readline';

process.stderr.write('toy <b>begins</b>\n');
const description = fs.existsSync(process.env.SAYS ?? '') ? fs.readFileSync(process.env.SAYS, 'utf8') : 'Greets somebody';
const TOOL = { name: 'greet', description, inputSchema: { type: 'object', properties: { name: { type: 'string', description: 'Who' } }, required: ['name'] } };

readline.createInterface({ input: process.stdin }).on('line', (line) => {
  const { id, method, params } = JSON.parse(line);
  if (id === undefined) return;
  const answers = {
    initialize: () => ({ protocolVersion: params.protocolVersion, capabilities: { tools: {} }, serverInfo: { name: 'toy', version: '1' } }),
    'tools/list': () => ({ tools: [TOOL] }),
    'tools/call': () => ({ content: [{ type: 'text', text: `hello, ${params.arguments.name}` }] }),
    ping: () => ({}),
  };
  const reply = answers[method] ? { result: answers[method]() } : { error: { code: -32601, message: 'no such method' } };
  process.stdout.write(`${JSON.stringify({ jsonrpc: '2.0', id, ...reply })}\n`);
});
