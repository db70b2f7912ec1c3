// opencode as its plugin sees it: sessions with messages, a prompt that is admitted tells `chat.message`, a turn that is over
// tells `session.idle`. A session that another process made is told of by its first prompt alone. Commands come as lines: begin, goOn,
// call, kept, unkept, busy, idle, ask, answered, unseen, refuse, slow, free.
import { spawn } from "node:child_process"
import { once } from "node:events"
import fs from "node:fs"
import { createInterface } from "node:readline"
import { SvcPlugin } from "./plugin.mjs"

const session = "ses_1"
// What it keeps outlives the process.
const messages = fs.existsSync("kept.json") ? JSON.parse(fs.readFileSync("kept.json")) : []
const keep = (message) => (messages.push(message), fs.writeFileSync("kept.json", JSON.stringify(messages)))
const how = { seen: true, refuse: false }
let plugin, isBusy = false, turns = 0, release = []
const say = (word) => process.stdout.write(JSON.stringify(word) + "\n")

const admit = async (parts) => {
  while (release.length && how.slow) await new Promise((free) => release.push(free))
  const info = { id: `msg_${messages.length}`, role: "user", sessionID: session }
  keep({ info, parts })
  fs.appendFileSync("given.jsonl", JSON.stringify(parts.map((part) => part.text).join("\n")) + "\n")
  if (how.seen) await plugin["chat.message"]({ sessionID: session }, { message: info, parts: [...parts] })
}

const event = (type, more) => plugin.event({ event: { type, properties: { sessionID: session, ...more } } })

const client = {
  _client: { post: async (call) => (fs.appendFileSync("posted.jsonl", JSON.stringify(call) + "\n"), {}) },
  session: {
    promptAsync: async ({ path, body }) => {
      if (path.id !== session || how.refuse) return { error: { name: "Refused" } }
      if (how.slow) await new Promise((free) => release.push(free))
      await admit(body.parts)
      if (!isBusy) {
        const words = `words ${++turns}`
        await plugin["experimental.text.complete"]({ sessionID: session, messageID: `msg_a${turns}` }, { text: words })
        await event("session.idle")
      }
      return { response: { status: 204 } }
    },
    messages: async ({ path }) => (path.id === session ? { data: messages } : { error: { name: "NotFound" } }),
  },
}
// The end of a tool's call, whose output the plugin adds to. The model reads it if it is kept.
const tool = async (isKept) => {
  const output = { output: "done" }
  await plugin["tool.execute.after"]({ tool: "bash", sessionID: session, callID: "call_0", args: { command: "true" } }, output)
  if (!isKept) return
  keep({ info: { role: "assistant", sessionID: session }, parts: [{ type: "tool", state: { status: "completed", output: output.output } }] })
  fs.appendFileSync("given.jsonl", JSON.stringify(output.output) + "\n")
}

// A call of a tool: the plugin hears of it, then the server of svc that opencode has started.
const call = async () => {
  await plugin["tool.execute.before"]({ tool: "svc_peer_list", sessionID: session, callID: "call_1" }, { args: {} })
  const svc = spawn(process.argv[2], ["stdio"], { stdio: ["pipe", "pipe", "inherit"] })
  const ask = (id, method, params) => svc.stdin.write(JSON.stringify({ jsonrpc: "2.0", id, method, params }) + "\n")
  const clientInfo = { name: "opencode", version: "1.18.33" }
  ask(1, "initialize", { protocolVersion: "2025-11-25", capabilities: {}, clientInfo })
  for await (const line of createInterface({ input: svc.stdout })) {
    const { id, result } = JSON.parse(line)
    if (id === 1) ask(2, "tools/call", { name: "peer_list", arguments: {} })
    if (id === 2) say({ called: result }), svc.stdin.end()
  }
  if (svc.exitCode === null) await once(svc, "exit")
}

plugin = await SvcPlugin({ client, directory: process.cwd() })

const commands = {
  begin: () => event("session.created", { info: { id: session, directory: process.cwd() } }),
  goOn: () => admit([{ type: "text", text: "go on, please" }]),
  call,
  kept: () => tool(true),
  unkept: () => tool(false),
  busy: () => ((isBusy = true), admit([{ type: "text", text: "a person's prompt" }])),
  idle: () => ((isBusy = false), event("session.idle")),
  ask: () => event("permission.asked", { id: "per_1", permission: "bash", patterns: ["ls"], always: [], metadata: {}, tool: { callID: "c" } }),
  answered: () => event("permission.replied", { requestID: "per_1", reply: "once" }),
  unseen: () => (how.seen = false),
  refuse: () => (how.refuse = true),
  slow: () => (how.slow = true),
  free: () => ((how.slow = false), release.splice(0).forEach((free) => free())),
}
for await (const line of createInterface({ input: process.stdin })) {
  await commands[line]()
  say(line)
}
