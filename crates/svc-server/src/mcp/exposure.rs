//! Which tools a caller is shown.

use http::{HeaderMap, HeaderValue};
use svc_model::{Caller, ToolExposure};
use svc_wire::mcp::EXPOSE;

use super::{McpServer, rpc::RpcError};

impl McpServer {
    /// Which tools a caller is shown: as the header asks, else as configured. By default a session gets a few, as each of
    /// them costs its model tokens in every turn, and the operator gets all.
    pub(crate) fn exposure(
        &self,
        caller: &Caller,
        headers: &HeaderMap,
    ) -> Result<ToolExposure, RpcError> {
        let by_default =
            if caller.is_operator() { ToolExposure::All } else { ToolExposure::Search };
        match headers.get(EXPOSE).map(HeaderValue::to_str) {
            None => Ok(self.exposure.unwrap_or(by_default)),
            Some(asked) => asked.ok().and_then(|asked| asked.parse().ok()).ok_or_else(|| {
                RpcError::invalid_params("Svc-Expose: must be search or all").status(400)
            }),
        }
    }
}
