//! What to type next, as it has to be typed for the lab that is meant.

use super::args::DEFAULT_NAME;
use crate::print;

/// `podwire lab heal n1`, with the lab's name where it is not the usual one.
pub(super) fn command(name: &str, rest: &str) -> String {
    if name == DEFAULT_NAME {
        format!("podwire lab {rest}")
    } else {
        format!("podwire lab --name {name} {rest}")
    }
}

/// A sentence, and the command below it on a line of its own, to be pasted.
pub(super) fn undo(sentence: &str, command: &str) -> String {
    format!("{}\n  {command}", print::wrap(sentence, print::width()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_name_that_must_be_given_is_given() {
        assert_eq!(command("default", "down"), "podwire lab down");
        assert_eq!(command("two", "heal n1"), "podwire lab --name two heal n1");
    }
}
