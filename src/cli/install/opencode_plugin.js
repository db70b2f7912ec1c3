// and taken away by `svc uninstall`; a changed file is put right by the next `svc install`.
//
// Tells the svc daemon what happens in a session and gives the model what it answers: one short request for each
// event, to this machine. A daemon that is away, slow or wrong changes nothing: nothing here throws.
import { readFile } from "node:fs/promises"
import { homedir } from "node:os"
import path from "node:path"

const settings = @SETTINGS@
// Milliseconds that a person or a model may be kept waiting.
const PATIENCE = 300

const home =
  settings.home ?? process.env.SVC_HOME ?? path.join(process.env.XDG_DATA_HOME || path.join(homedir(), ".local/share"), "svc")
const read = (name) => readFile(path.join(home, name), "utf8")

/** What the daemon says to an event, for the model; or nothing. */
const tell = async (session, payload) => {
  try {
    // Both are read anew each time: a restart may change them.
    const [daemon, token] = await Promise.all([read("daemon.json"), process.env.SVC_TOKEN ?? read("token")])
    const call = { name: "hook_event", arguments: { client: "opencode", ...session, payload } }
    const answer = await fetch(new URL("/mcp", JSON.parse(daemon).url), {
      method: "POST",
      headers: { "Content-Type": "application/json", Accept: "application/json", Authorization: `Bearer ${token.trim()}` },
      body: JSON.stringify({ jsonrpc: "2.0", id: 1, method: "tools/call", params: call }),
      signal: AbortSignal.timeout(PATIENCE),
    })
    if (!answer.ok) return
    const { result } = await answer.json()
    const context = result?.isError ? undefined : result?.structuredContent?.context
    return typeof context === "string" && context ? context : undefined
  } catch {
    return
  }
}

// A sub-agent is a session of its own here; to the daemon it is a part of the one that it works for.
const parents = new Map()
const root = (id) => {
  let seen = 0
  while (parents.has(id) && seen++ < 32) id = parents.get(id)
  return id
}

let parts = 0
// An id that sorts behind those of the message's own parts.
const partID = () => `prt_zz${Date.now().toString(36)}${(parts++).toString(36).padStart(4, "0")}svc`

const EVENTS = ["session.created", "session.idle", "session.error", "session.compacted", "session.deleted"]

export const SvcPlugin = async ({ directory }) => {
  return {
    event: async ({ event }) => {
      const id = event?.properties?.sessionID ?? event?.properties?.info?.id
      // Messages have parents, too.
      const parent = event?.type?.startsWith("session.") ? event.properties?.info?.parentID : undefined
      if (id && parent) parents.set(id, parent)
      if (!id || parents.has(id) || !EVENTS.includes(event?.type)) return
      await tell({ cwd: directory }, { hook: "event", event })
    },
    "chat.message": async (input, output) => {
      if (!input?.sessionID || parents.has(input.sessionID)) return
      const text = await tell({ cwd: directory }, { hook: "chat.message", input, output })
      if (!text || !Array.isArray(output?.parts)) return
      output.parts.push({ id: partID(), sessionID: input.sessionID, messageID: output.message.id, type: "text", text, synthetic: true })
    },
    "tool.execute.after": async (input, output) => {
      if (!input?.sessionID) return
      const session = root(input.sessionID)
      const agent = session === input.sessionID ? {} : { agent_id: input.sessionID }
      const payload = { hook: "tool.execute.after", input: { ...input, sessionID: session }, output }
      const text = await tell({ cwd: directory, ...agent }, payload)
      if (!text) return
      if (typeof output?.output === "string") output.output += `\n\n${text}`
      else if (Array.isArray(output?.content)) output.content.push({ type: "text", text })
    },
  }
}
