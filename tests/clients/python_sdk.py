"""The Python SDK 2.x."""

import asyncio
import contextlib
import json
import time
import traceback

import httpx2
import mcp_types as types
from mcp import Client
from mcp.client.sse import sse_client
from mcp.client.session import ClientSession
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import ClientMessageMetadata

from daemon import BIN, Checks, Daemon

checks = Checks()


async def check(name, run, within=40):
    started = time.time()
    try:
        await asyncio.wait_for(run, within)
    except BaseException as error:  # noqa: BLE001  a check may fail in any way
        checks.say(f"python: {name}", started, "".join(traceback.format_exception(error)))
    else:
        checks.say(f"python: {name}", started)


def structured(result):
    """What every tool's result has to be: one text that is the JSON object of the structured content."""
    assert not result.is_error, result
    (text,) = result.content
    assert json.loads(text.text) == result.structured_content, result
    return result.structured_content


@contextlib.asynccontextmanager
async def transport(daemon):
    async with httpx2.AsyncClient(headers=daemon.headers, timeout=httpx2.Timeout(30, read=300)) as http:
        async with streamable_http_client(f"{daemon.url}/mcp", http_client=http) as streams:
            yield streams


async def soon(seconds, do, *args):
    await asyncio.sleep(seconds)
    await asyncio.to_thread(do, *args)


async def later(seconds, do, *args):
    return asyncio.create_task(soon(seconds, do, *args))


async def tour(client):
    tools = (await client.list_tools()).tools
    assert any(tool.name == "peer_list" for tool in tools)
    peer = {"display_name": "ada", "backend": "codex", "path": "/repo"}
    made = structured(await client.call_tool("peer_register", peer))
    peers = structured(await client.call_tool("peer_list"))["peers"]
    assert made["peer_id"] in [it["peer_id"] for it in peers]
    for resource in (await client.list_resources()).resources:
        assert (await client.read_resource(resource.uri)).contents
    assert (await client.list_prompts()).prompts
    failed = await client.call_tool("TaskGet", {"task_id": "nope"})
    assert failed.is_error and failed.structured_content["error"]["type"] == "not_found", failed
    try:
        await client.call_tool("nope")
        raise AssertionError("a tool that is not there")
    except Exception as error:
        assert getattr(error, "error", error).code == -32602, error
    return made["peer_id"]


async def wait(client, task):
    return structured(await client.call_tool("TaskWait", {"task_id": task, "timeout_s": 60}))


async def http(mode):
    with Daemon() as daemon:

        async def base():
            async with Client(transport(daemon), mode=mode) as client:
                modern = mode != "legacy"
                assert client.protocol_version == ("2026-07-28" if modern else "2025-11-25"), client.protocol_version
                assert modern or client.server_info.name == "svc"
                await tour(client)

        async def slow():
            async with Client(transport(daemon), mode=mode) as client:
                task = await asyncio.to_thread(daemon.task)
                await later(2, daemon.finish, task)
                assert (await wait(client, task))["task"]["status"] == "done"

        async def killed():
            async with Client(transport(daemon), mode=mode) as client:
                structured(await client.call_tool("peer_list"))
                await asyncio.to_thread(daemon.crash)
                structured(await client.call_tool("peer_list"))

        async def killed_in_call():
            async with Client(transport(daemon), mode=mode) as client:
                task = await asyncio.to_thread(daemon.task)
                call = asyncio.create_task(wait(client, task))
                await asyncio.sleep(1.5)
                await asyncio.to_thread(daemon.crash)
                if mode == "legacy":
                    await later(1, daemon.finish, task)
                    assert (await call)["task"]["status"] == "done"
                else:
                    # Without sessions nothing resumes: the call fails at once, and repeating it is right.
                    try:
                        raise AssertionError(await call)
                    except Exception as error:
                        assert not isinstance(error, AssertionError), error
                    await later(1, daemon.finish, task)
                    assert (await wait(client, task))["task"]["status"] == "done"

        async def listen():
            async with Client(transport(daemon), mode=mode) as client:
                task = await asyncio.to_thread(daemon.task)
                uri = f"svc://stream/task/{task}"
                async with client.listen(tools_list_changed=True, resource_subscriptions=[uri]) as subscription:
                    finishing = await later(0.3, daemon.finish, task)
                    async for event in subscription:
                        assert event.uri == uri, event
                        break
                    await finishing

        await check(f"{mode}: list, call, read, prompts", base())
        await check(f"{mode}: a slow call", slow())
        await check(f"{mode}: kill -9 between calls", killed())
        await check(f"{mode}: kill -9 in the middle of a call", killed_in_call())
        if mode != "legacy":
            await check(f"{mode}: subscriptions/listen", listen())


async def resume():
    """A client that has lost its call, and has kept the last event id."""
    with Daemon() as daemon:

        async def resumed():
            async with transport(daemon) as (read, write), ClientSession(read, write) as session:
                await session.initialize()
                task = await asyncio.to_thread(daemon.task)
                params = types.CallToolRequestParams(name="TaskWait", arguments={"task_id": task, "timeout_s": 60})
                request = types.CallToolRequest(params=params)
                tokens = []

                async def note(token):
                    tokens.append(token)

                metadata = ClientMessageMetadata(on_resumption_token_update=note)
                call = asyncio.create_task(session.send_request(request, types.CallToolResult, metadata=metadata))
                await asyncio.sleep(1)
                assert tokens, "the stream has an id from the start"
                await asyncio.to_thread(daemon.kill9)
                try:
                    raise AssertionError(await call)
                except Exception as error:
                    assert not isinstance(error, AssertionError), error
                await asyncio.to_thread(daemon.start)
                await later(1, daemon.finish, task)
                metadata = ClientMessageMetadata(resumption_token=tokens[-1], on_resumption_token_update=note)
                result = await session.send_request(request, types.CallToolResult, metadata=metadata)
                assert structured(result)["task"]["status"] == "done"

        await check("resumption token over kill -9, after its own attempts were used up", resumed())


async def others():
    with Daemon() as daemon:

        async def sse():
            async with Client(sse_client(f"{daemon.url}/sse", headers=daemon.headers), mode="legacy") as client:
                await tour(client)
                task = await asyncio.to_thread(daemon.task)
                await later(1, daemon.finish, task)
                assert (await wait(client, task))["task"]["status"] == "done"

        async def stdio(mode):
            async with Client(StdioServerParameters(command=BIN, args=["stdio"], env=daemon.env), mode=mode) as client:
                peer = await tour(client)
                task = await asyncio.to_thread(daemon.task, peer)
                call = asyncio.create_task(wait(client, task))
                await asyncio.sleep(1.5)
                await asyncio.to_thread(daemon.crash)
                await later(1, daemon.finish, task)
                assert (await call)["task"]["status"] == "done"

        await check("sse: list, call, slow call", sse())
        for mode in ("legacy", "auto"):
            await check(f"stdio, {mode}: list, call, slow call over kill -9", stdio(mode))


async def main():
    await asyncio.gather(http("legacy"), http("auto"), http("2026-07-28"), resume(), others())


asyncio.run(main())
checks.exit()
