//! Tables that a person can read. Everything that goes to stdout for people goes through here.

use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};

/// A table without lines, as `kubectl` and `ip -br` print them.
pub(crate) fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table
        .load_style(NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header.to_vec());
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}
