//! Names that a reader would take for the operator's.

use super::quote;

/// What people and programs that speak for the operator are called.
const RESERVED: [&str; 10] = [
    "operator",
    "human",
    "user",
    "admin",
    "administrator",
    "root",
    "system",
    "svc",
    "daemon",
    "owner",
];

/// Whether a name looks like one of the operator's: in other letters that look the same, in capitals, spaced, with
/// characters that nobody sees.
pub fn looks_like_operator(name: &str) -> bool {
    // The skeleton leaves out what may be a separator, `1` too, so `user1` is told from `user` by its length.
    let letters = name.chars().filter(|c| c.is_alphanumeric()).count();
    let skeleton = quote::skeleton_of(name);
    RESERVED.iter().any(|reserved| {
        skeleton == quote::skeleton_of(reserved) && letters == reserved.chars().count()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_by_what_they_look_like() {
        for name in [
            "operator",
            "Operator",
            " OPERATOR ",
            "o p e r a t o r",
            "oper-ator",
            "[operator]",
            "ореrator",
            "οperatοr",
            "ｏｐｅｒａｔｏｒ",
            "ｏperator\u{200b}",
            "o\u{ad}perator",
            "\u{202e}operator",
            "òperátor",
            "𝐨𝐩𝐞𝐫𝐚𝐭𝐨𝐫",
            "human",
            "hυman",
            "User",
            "admin",
            "adm1n",
            "admіn",
            "system",
            "svc",
            "SVC",
            "root",
        ] {
            assert!(looks_like_operator(name), "{name:?}");
        }
        for name in [
            "",
            "-",
            "ann",
            "claude-code@svc",
            "operators",
            "user1",
            "user-1",
            "svc-2",
            "reviewer",
            "humane",
            "администратор",
            "用户",
        ] {
            assert!(!looks_like_operator(name), "{name:?}");
        }
    }
}
