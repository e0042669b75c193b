//! Draws lines of a terminal as SVG. Each word has its own position, so columns align in every font.

// Sizes in pixels.
const COLUMN_WIDTH: f64 = 8.4;
const LINE_HEIGHT: usize = 19;
const MARGIN: usize = 16;
const TITLE_BAR_HEIGHT: usize = 30;

const MIN_COLUMNS: usize = 80;

pub(crate) fn draw(lines: &[String]) -> String {
    let columns = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0).max(MIN_COLUMNS);
    let width = (columns as f64 * COLUMN_WIDTH).ceil() + 2.0 * MARGIN as f64;
    let height = TITLE_BAR_HEIGHT + lines.len() * LINE_HEIGHT + MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace\" font-size=\"14\">\n\
         <title>podwire lab up, podwire lab test, podwire lab status</title>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#0d1117\"/>\n\
         <circle cx=\"18\" cy=\"15\" r=\"5\" fill=\"#ff5f57\"/><circle cx=\"36\" cy=\"15\" r=\"5\" fill=\"#febc2e\"/>\
         <circle cx=\"54\" cy=\"15\" r=\"5\" fill=\"#28c840\"/>\n"
    );
    for (number, line) in lines.iter().enumerate() {
        let y = TITLE_BAR_HEIGHT + number * LINE_HEIGHT + 14;
        let is_command = line.starts_with("$ ");
        let words: String = positions(line).map(|(column, word)| tspan(column, word, is_command)).collect();
        if !words.is_empty() {
            svg.push_str(&format!("<text y=\"{y}\" fill=\"#c9d1d9\">{words}</text>\n"));
        }
    }
    svg.push_str("</svg>\n");
    svg
}

/// The words of a line and the columns where they start.
fn positions(line: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut column = 0;
    line.split(' ').filter_map(move |word| {
        let start = column;
        column += word.chars().count() + 1;
        (!word.is_empty()).then_some((start, word))
    })
}

fn tspan(column: usize, word: &str, is_command: bool) -> String {
    let x = MARGIN as f64 + column as f64 * COLUMN_WIDTH;
    let style = match word {
        "$" => " fill=\"#3fb950\"",
        _ if is_command => " fill=\"#ffffff\" font-weight=\"bold\"",
        "●" | "◆" | "○" | "ready" | "leader" | "healthy" | "up" => " fill=\"#3fb950\"",
        "✗" | "!" | "?" => " fill=\"#f85149\"",
        _ => "",
    };
    let text = word.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    format!("<tspan x=\"{x:.1}\"{style}>{text}</tspan>")
}

#[test]
fn words_keep_their_columns_and_special_characters_are_escaped() {
    let svg = draw(&["$ a <b>".to_owned(), "  ●".to_owned()]);
    for part in ["x=\"16.0\"", "x=\"32.8\"", "&lt;b&gt;", "x=\"32.8\" fill=\"#3fb950\">●", "height=\"84\""]
    {
        assert!(svg.contains(part), "{part} in {svg}");
    }
}
