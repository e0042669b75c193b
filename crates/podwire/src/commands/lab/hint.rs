//! Commands for the operator, with the name of the lab.

use super::args::DEFAULT_NAME;
use crate::print;

/// `podwire lab heal n1`, with `--name` for a lab that is not the default.
pub(super) fn command(name: &str, args: &str) -> String {
    if name == DEFAULT_NAME {
        format!("podwire lab {args}")
    } else {
        format!("podwire lab --name {name} {args}")
    }
}

/// A sentence, and below it the command on its own line, because it is pasted.
pub(super) fn undo(sentence: &str, command: &str) -> String {
    format!("{}\n  {command}", print::wrap(sentence, print::width()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_default_lab_is_omitted() {
        assert_eq!(command("default", "down"), "podwire lab down");
        assert_eq!(command("two", "heal n1"), "podwire lab --name two heal n1");
    }
}
