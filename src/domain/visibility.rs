//! Who may read a stream. The rule stands here and nowhere else: whoever reads asks [`StreamReader::may_read`], or
//! gives [`StreamReader::readable`] to a query.

use serde::{Deserialize, Serialize};

use super::{Caller, StreamName};

/// Who may read a stream. It is decided when the stream is opened, and stored with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamVisibility {
    /// Every caller.
    Team,
    /// The operator. The session that an answer is for reads it by another way, which knows the session.
    Operator,
}

impl StreamVisibility {
    /// All of them.
    const ALL: [Self; 2] = [Self::Team, Self::Operator];

    /// The visibility that a stream of this name is opened with.
    pub fn of_new(name: &StreamName) -> Self {
        // An answer to an MCP client may hold what its caller may read and others may not.
        match name.kind() {
            "mcp" => Self::Operator,
            _ => Self::Team,
        }
    }
}

/// For whom streams are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamReader {
    /// Any caller, whoever it is.
    Team,
    /// The operator.
    Operator,
}

impl StreamReader {
    /// The reader that a caller is.
    pub const fn of(caller: &Caller) -> Self {
        match caller {
            Caller::Operator => Self::Operator,
            Caller::Session { .. } => Self::Team,
        }
    }

    /// Whether it may read streams of this visibility.
    pub const fn may_read(self, visibility: StreamVisibility) -> bool {
        match visibility {
            StreamVisibility::Team => true,
            StreamVisibility::Operator => matches!(self, Self::Operator),
        }
    }

    /// The visibilities that it may read, for queries.
    pub fn readable(self) -> Vec<StreamVisibility> {
        StreamVisibility::ALL.into_iter().filter(|visibility| self.may_read(*visibility)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_to_mcp_clients_are_for_the_operator_alone() {
        for (name, visibility) in [
            ("mcp/call_1", StreamVisibility::Operator),
            ("mcp/", StreamVisibility::Operator),
            ("mcp", StreamVisibility::Team),
            ("mcpx/1", StreamVisibility::Team),
            ("task/mcp/1", StreamVisibility::Team),
            ("team", StreamVisibility::Team),
        ] {
            let name = StreamName::parse(name).unwrap();
            assert_eq!(StreamVisibility::of_new(&name), visibility, "{name}");
        }
        assert_eq!(StreamReader::Team.readable(), [StreamVisibility::Team]);
        assert_eq!(StreamReader::Operator.readable(), StreamVisibility::ALL);
    }
}
