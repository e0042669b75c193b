//! Properties of stdout that decide the width and the colours of the output.

use std::io::{self, IsTerminal as _};
use std::sync::OnceLock;

use rustix::termios::tcgetwinsize;

/// Width of output that is not written to a terminal, and the largest width on a terminal.
const MAX_WIDTH: usize = 80;
/// Tables cannot be narrower.
const MIN_WIDTH: usize = 40;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OutputTerminal {
    width: usize,
    has_colours: bool,
}

/// Without [`detect_terminal`], as in unit tests, the output has 80 columns and no colours.
static TERMINAL: OnceLock<OutputTerminal> = OnceLock::new();
const NO_TERMINAL: OutputTerminal = OutputTerminal { width: MAX_WIDTH, has_colours: false };

/// Called once, at the start of the program.
pub(crate) fn detect_terminal() {
    TERMINAL.get_or_init(|| {
        let stdout = io::stdout();
        if !stdout.is_terminal() {
            return NO_TERMINAL;
        }
        let columns = tcgetwinsize(&stdout).map_or(0, |size| usize::from(size.ws_col));
        // https://no-color.org
        let has_colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        OutputTerminal { width: limited(columns), has_colours }
    });
}

/// A terminal that does not know its width reports 0 columns.
fn limited(columns: usize) -> usize {
    if columns == 0 { MAX_WIDTH } else { columns.clamp(MIN_WIDTH, MAX_WIDTH) }
}

/// The width of tables, sentences and help. Only commands and paths are longer, because they are copied.
pub(crate) fn width() -> usize {
    TERMINAL.get().unwrap_or(&NO_TERMINAL).width
}

pub(super) fn has_colours() -> bool {
    TERMINAL.get().unwrap_or(&NO_TERMINAL).has_colours
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_as_wide_as_the_terminal_within_limits() {
        for (columns, width) in [(0, 80), (20, 40), (60, 60), (80, 80), (200, 80)] {
            assert_eq!(limited(columns), width, "{columns}");
        }
    }
}
