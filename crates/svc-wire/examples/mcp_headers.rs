//! The head of a request to an MCP server, from its body: `cargo run -p svc-wire --example
//! mcp_headers '{"id":1,"method":"ping"}'`.

use std::error::Error;
use std::io::{self, Write};

use svc_wire::mcp::Revision;
use svc_wire::mcp_request::{RequestSetting, post};

fn main() -> Result<(), Box<dyn Error>> {
    let body = std::env::args().nth(1).ok_or("give a JSON-RPC message")?;
    write_head(body, &mut io::stdout())
}

/// Writes the method and the headers that a client sends with this message, in the order of their
/// names.
fn write_head(body: String, out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let setting =
        RequestSetting { revision: Some(Revision::V2025_06_18), ..RequestSetting::default() };
    let request = post(body.into(), setting);
    writeln!(out, "{}", request.method)?;
    let mut headers: Vec<_> = request.headers.iter().collect();
    headers.sort_by_key(|(name, _)| name.as_str());
    for (name, value) in headers {
        writeln!(out, "{name}: {}", value.to_str()?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_repeat_method_and_name_of_a_call_and_no_name_of_another_request() {
        let call = r#"{"id":1,"method":"tools/call","params":{"name":"echo"}}"#;
        let list = r#"{"id":1,"method":"tools/list","params":{"name":"echo"}}"#;
        for (body, own) in
            [(call, "mcp-method: tools/call\nmcp-name: echo\n"), (list, "mcp-method: tools/list\n")]
        {
            let mut out = Vec::new();
            write_head(body.to_owned(), &mut out).unwrap();
            let expected = format!(
                "POST\naccept: application/json, text/event-stream\ncontent-type: application/json\n\
                 {own}mcp-protocol-version: 2025-06-18\n"
            );
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }
}
