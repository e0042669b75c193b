//! The project's Markdown pages, for tests that compare them with the programs: fenced blocks, code spans, links, anchors and the
//! `podwire` commands in them. It only reads files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// A Markdown file of the project.
#[derive(Debug, Clone)]
pub struct Page {
    /// Relative to the root of the project.
    pub path: PathBuf,
    pub text: String,
}

/// A fenced block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    /// Index of the line after the opening fence.
    pub start: usize,
    /// The text after the opening backticks: `json`, `console n1`.
    pub info: String,
    pub lines: Vec<String>,
}

impl Fence {
    pub fn language(&self) -> &str {
        self.info.split_whitespace().next().unwrap_or_default()
    }

    pub fn text(&self) -> String {
        self.lines.iter().map(|line| format!("{line}\n")).collect()
    }
}

/// The root of the project.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All Markdown pages of the project, sorted by path.
pub fn pages() -> Result<Vec<Page>> {
    let mut paths = Vec::new();
    collect(&root(), Path::new(""), &mut paths)?;
    paths.sort();
    paths.iter().map(Page::read).collect()
}

/// README.md, deploy/README.md and docs/ without the internals: the pages for users.
pub fn user_pages() -> Result<Vec<Page>> {
    let is_for_users = |page: &Page| {
        let path = page.path.to_string_lossy();
        ["README.md", "deploy/README.md"].contains(&path.as_ref())
            || (path.starts_with("docs/") && !path.starts_with("docs/internals/"))
    };
    Ok(pages()?.into_iter().filter(is_for_users).collect())
}

fn collect(root: &Path, below: &Path, paths: &mut Vec<PathBuf>) -> Result<()> {
    let dir = root.join(below);
    for entry in fs::read_dir(&dir).with_context(|| format!("cannot list {}", dir.display()))? {
        let entry = entry?;
        let name = entry.file_name();
        let is_hidden = name.to_string_lossy().starts_with('.');
        let path = below.join(&name);
        if entry.file_type()?.is_dir() {
            if !is_hidden && name != "target" {
                collect(root, &path, paths)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "md") {
            paths.push(path);
        }
    }
    Ok(())
}

impl Page {
    /// `path` is relative to the root of the project.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let file = root().join(path);
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok(Self { path: path.to_owned(), text })
    }

    pub fn fences(&self) -> Vec<Fence> {
        let mut fences = Vec::new();
        let mut open: Option<(usize, Fence)> = None;
        for (number, line) in self.text.lines().enumerate() {
            let indent = line.len() - line.trim_start().len();
            match (open.as_mut(), line.trim_start().strip_prefix("```")) {
                (None, Some(info)) => {
                    let fence = Fence { start: number + 1, info: info.trim().to_owned(), lines: Vec::new() };
                    open = Some((indent, fence));
                }
                (Some(_), Some(_)) => fences.extend(open.take().map(|(_, fence)| fence)),
                (Some((outer, fence)), None) => fence.lines.push(line[indent.min(*outer)..].to_owned()),
                (None, None) => (),
            }
        }
        fences
    }

    /// The text without fenced blocks, by line number.
    fn prose(&self) -> Vec<(usize, &str)> {
        let mut is_code = false;
        let mut lines = Vec::new();
        for (number, line) in self.text.lines().enumerate() {
            if line.trim_start().starts_with("```") {
                is_code = !is_code;
            } else if !is_code {
                lines.push((number, line));
            }
        }
        lines
    }

    /// Texts between single backticks. A span may continue on the next line.
    pub fn spans(&self) -> Vec<String> {
        let prose: Vec<&str> = self.prose().into_iter().map(|(_, line)| line).collect();
        // A blank line ends a paragraph, and with it a span that was left open.
        let paragraphs = prose.split(|line| line.trim().is_empty());
        let spans = |lines: &[&str]| {
            let text = lines.join(" ");
            text.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>()
        };
        paragraphs.flat_map(spans).collect()
    }

    /// Targets of links and images with their line numbers, from 1.
    pub fn links(&self) -> Vec<(usize, String)> {
        let mut links = Vec::new();
        for (number, line) in self.prose() {
            // Code spans hold no links.
            let text: String = line.split('`').step_by(2).collect();
            for rest in text.split("](").skip(1) {
                if let Some((target, _)) = rest.split_once(')') {
                    links.push((number + 1, target.to_owned()));
                }
            }
        }
        links
    }

    /// Anchors of headings, as GitHub makes them.
    pub fn anchors(&self) -> Vec<String> {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        let headings = self.prose().into_iter().filter_map(|(_, line)| {
            let title = line.trim_start_matches('#');
            (title.len() < line.len()).then(|| title.strip_prefix(' ')).flatten()
        });
        let anchors = headings.map(|title| {
            let slug = slug(title);
            let count = counts.entry(slug.clone()).or_default();
            *count += 1;
            if *count == 1 { slug } else { format!("{slug}-{}", *count - 1) }
        });
        anchors.collect()
    }

    /// Command lines that the page asks the reader to run, or names: `$ ` lines of console blocks, lines of unmarked and shell
    /// blocks, and code spans.
    pub fn command_lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for fence in self.fences() {
            let is_session = fence.language() == "console";
            let is_shell = ["", "sh", "bash"].contains(&fence.language());
            lines.extend(fence.lines.iter().filter_map(|line| match line.strip_prefix("$ ") {
                Some(command) => Some(command.to_owned()),
                None if is_shell && !is_session => Some(line.clone()),
                None => None,
            }));
        }
        lines.extend(self.spans());
        lines
    }

    /// The arguments of every `podwire` command in the page, without the program.
    pub fn podwire_commands(&self) -> Vec<Vec<String>> {
        self.command_lines().iter().flat_map(|line| podwire_commands(line)).collect()
    }

    /// Setup commands of a session: `<!-- run: COMMAND -->`, by line number.
    pub fn setup_commands(&self) -> Vec<(usize, String)> {
        let command = |line: &str| {
            let inner = line.trim().strip_prefix("<!-- run: ")?.strip_suffix(" -->")?;
            Some(inner.to_owned())
        };
        let lines = self.prose().into_iter();
        lines.filter_map(|(number, line)| Some((number, command(line)?))).collect()
    }
}

/// Lower case, hyphens for spaces, no punctuation.
fn slug(title: &str) -> String {
    // The anchor has the text of a link, not its target.
    let mut text = String::new();
    let mut rest = title;
    while let Some((before, after)) = rest.split_once("](") {
        text.push_str(&before.replacen('[', "", 1));
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    text.push_str(rest);
    let kept = text.trim().chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The arguments of the `podwire` commands in a line. Lines of output are recognised: they are indented, or no command follows.
fn podwire_commands(line: &str) -> Vec<Vec<String>> {
    let line = line.strip_prefix("# ").unwrap_or(line);
    let line = line.split(" # ").next().unwrap_or_default();
    let parts = [" && ", " | ", "; "].iter().fold(vec![line], |parts, separator| {
        parts.into_iter().flat_map(|part| part.split(separator)).collect()
    });
    let mut commands = Vec::new();
    for part in parts {
        let words = shell_words(part);
        let is_program = |word: &String| ["podwire", "target/release/podwire"].contains(&word.as_str());
        // `podwire lab exec n1 -- podwire routes` is two commands.
        let starts = (0..words.len()).filter(|&n| {
            is_program(&words[n])
                && (n == 0 || ["sudo", "--"].contains(&words[n - 1].as_str()) || is_inside_exec(&words[..n]))
        });
        let is_indented = part.starts_with(' ') && part == line;
        for start in starts.filter(|_| !is_indented) {
            let arguments = &words[start + 1..];
            let is_command = |word: &str| {
                word.starts_with('-')
                    || (!word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c == '-'))
            };
            if arguments.first().is_some_and(|word| is_command(word)) {
                commands.push(arguments.to_vec());
            }
        }
    }
    commands
}

/// True after `podwire lab exec n1`, which may be followed by a command without `--`.
fn is_inside_exec(before: &[String]) -> bool {
    matches!(before, [.., exec, _] if exec == "exec")
}

/// Words of a shell command; quotes are removed.
fn shell_words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None::<char>);
    for c in line.chars() {
        match quote {
            Some(open) if c == open => quote = None,
            Some(_) => word.get_or_insert_default().push(c),
            None if c == '\'' || c == '"' => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            None if c.is_whitespace() => words.extend(word.take()),
            None => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(text: &str) -> Page {
        Page { path: "x.md".into(), text: text.to_owned() }
    }

    #[test]
    fn fences_spans_and_setup_commands_are_found() {
        let page =
            page("a `b\nc`\n```console n1\n$ d\ne\n```\n<!-- run: f g -->\n  ```\n  h\n    i\n  ```\n");
        let fences = page.fences();
        assert_eq!(
            (fences[0].start, fences[0].info.as_str(), fences[0].language()),
            (3, "console n1", "console")
        );
        assert_eq!(fences[0].lines, ["$ d", "e"]);
        assert_eq!(fences[1].lines, ["h", "  i"]);
        assert_eq!(page.spans(), ["b c"]);
        assert_eq!(page.setup_commands(), [(6, "f g".to_owned())]);
    }

    #[test]
    fn links_and_anchors_are_those_of_github() {
        let page = page(
            "# A, b & `c_d`\n## [Link](x.md) here\n## Same\n## Same\n```\n# no\n```\n![i](p.svg) [t](y.md#z) `[n](o)`\n",
        );
        assert_eq!(page.anchors(), ["a-b--c_d", "link-here", "same", "same-1"]);
        let targets: Vec<String> = page.links().into_iter().map(|(_, target)| target).collect();
        assert_eq!(targets, ["x.md", "p.svg", "y.md#z"]);
    }

    #[test]
    fn commands_are_found_and_output_is_not() {
        let text = "`podwire a\n--b 'c d'` `podwire 0.1.0 on x` `podwire-cni`\n```\npodwire e && sudo target/release/podwire f # g\n  podwire again\npodwire NAME\n```\n```console\n$ podwire lab exec n1 -- podwire h\n$ podwire lab exec n1 podwire i\npodwire j\n```\n";
        let commands: Vec<String> =
            page(text).podwire_commands().iter().map(|words| words.join(" ")).collect();
        assert_eq!(
            commands,
            ["e", "f", "lab exec n1 -- podwire h", "h", "lab exec n1 podwire i", "i", "a --b c d"]
        );
    }
}
