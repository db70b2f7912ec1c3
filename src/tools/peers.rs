//! Peers and messages.

use super::Tool;

pub(super) fn tools() -> Vec<Tool> {
    Vec::new()
}
