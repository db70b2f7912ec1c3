// and taken away by `svc uninstall`; a changed file is put right by the next `svc install`.
//
// Tells the svc daemon what happens in a session and gives the model what it answers: one short request for each
// event, to this machine. A daemon that is away, slow or wrong changes nothing: nothing here throws.
import { readFile } from "node:fs/promises"
import { homedir } from "node:os"
import path from "node:path"

const settings = @SETTINGS@
// Milliseconds that a person or a model may be kept waiting.
const PATIENCE = 1500

const home =
  settings.home ?? process.env.SVC_HOME ?? path.join(process.env.XDG_DATA_HOME || path.join(homedir(), ".local/share"), "svc")
const read = (name) => readFile(path.join(home, name), "utf8")

/** What the daemon says to an event, or null. */
const tell = async (event, sessionID, directory, payload) => {
  try {
    // Both are read anew each time: a restart may change them.
    const [daemon, token] = await Promise.all([read("daemon.json"), process.env.SVC_TOKEN ?? read("token")])
    const answer = await fetch(new URL("/mcp", JSON.parse(daemon).url), {
      method: "POST",
      headers: { "Content-Type": "application/json", Accept: "application/json", Authorization: `Bearer ${token.trim()}` },
      body: JSON.stringify({
        jsonrpc: "2.0",
        id: 1,
        method: "tools/call",
        params: {
          name: "hook_event",
          arguments: { client: "opencode", event, ...(sessionID ? { session_id: sessionID } : {}), payload: { hook: event, cwd: directory, ...payload } },
        },
      }),
      signal: AbortSignal.timeout(PATIENCE),
    })
    if (!answer.ok) return null
    const { result } = await answer.json()
    return result?.isError ? null : (result?.structuredContent?.output ?? null)
  } catch {
    return null
  }
}

let parts = 0
// An id that sorts behind those of the message's own parts.
const partID = () => `prt_zz${Date.now().toString(36)}${(parts++).toString(36).padStart(4, "0")}svc`

export const SvcPlugin = async ({ directory }) => {
  const send = (event, sessionID, payload) => tell(event, sessionID, directory, payload)
  return {
    event: async ({ event }) => {
      if (!["session.created", "session.idle", "session.deleted", "session.error"].includes(event?.type)) return
      const properties = event.properties ?? {}
      await send(event.type, properties.sessionID ?? properties.info?.id, { event })
    },
    "chat.message": async (input, output) => {
      const sessionID = input?.sessionID ?? output?.message?.sessionID
      const said = await send("chat.message", sessionID, { input, output })
      if (typeof said?.context !== "string" || !said.context || !Array.isArray(output?.parts)) return
      output.parts.push({ id: partID(), sessionID, messageID: output.message.id, type: "text", text: said.context, synthetic: true })
    },
    "tool.execute.before": async (input, output) => {
      await send("tool.execute.before", input?.sessionID, { input, output })
    },
    "tool.execute.after": async (input, output) => {
      const said = await send("tool.execute.after", input?.sessionID, { input, output })
      if (typeof said?.context !== "string" || !said.context) return
      if (typeof output?.output === "string") output.output += `\n\n${said.context}`
      else if (Array.isArray(output?.content)) output.content.push({ type: "text", text: said.context })
    },
    "experimental.session.compacting": async (input, output) => {
      const said = await send("experimental.session.compacting", input?.sessionID, { input })
      if (typeof said?.context === "string" && said.context && Array.isArray(output?.context)) output.context.push(said.context)
    },
  }
}
