//! Which of its tools a caller is shown.

use std::str::FromStr;

/// Which tools `tools/list` has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolExposure {
    /// A few. `ToolSearch` finds the others, and each is called by its name.
    Search,
    /// All.
    All,
}

impl ToolExposure {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Search => "search",
            Self::All => "all",
        }
    }
}

impl FromStr for ToolExposure {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.trim() {
            "search" => Ok(Self::Search),
            "all" => Ok(Self::All),
            _ => Err(format!("`{text}` is neither search nor all")),
        }
    }
}
