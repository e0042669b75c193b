//! The reachability matrix of `podwire lab test` as text.

use std::collections::BTreeMap;

use lab::{Matrix, MatrixCell, MatrixPod, PodPath, Reachability};

use crate::print;

/// The number of problems that are listed.
const MAX_PROBLEMS: usize = 20;

/// The symbol of a path, in order of severity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum PathSymbol {
    SameNode,
    Direct,
    Vxlan,
    /// Reached without a route of Podwire.
    OtherRoute,
    OnlyV4,
    OnlyV6,
    Rewritten,
    Unreached,
}

/// By the names of source and destination.
type Symbols<'a> = BTreeMap<(&'a str, &'a str), PathSymbol>;

impl PathSymbol {
    fn of(cell: &MatrixCell) -> Self {
        let rewritten =
            [&cell.v4, &cell.v6].iter().any(|r| matches!(r, Some(Reachability::Rewritten { .. })));
        let is_ok = |reach: &Option<Reachability>| reach.as_ref().is_some_and(Reachability::is_ok);
        match (cell.is_ok(), cell.path) {
            (true, PodPath::Local) => Self::SameNode,
            (true, PodPath::Direct) => Self::Direct,
            (true, PodPath::Vxlan) => Self::Vxlan,
            (true, PodPath::None) => Self::OtherRoute,
            (false, _) if rewritten => Self::Rewritten,
            (false, _) if is_ok(&cell.v4) => Self::OnlyV4,
            (false, _) if is_ok(&cell.v6) => Self::OnlyV6,
            (false, _) => Self::Unreached,
        }
    }

    fn is_good(self) -> bool {
        matches!(self, Self::SameNode | Self::Direct | Self::Vxlan | Self::OtherRoute)
    }

    fn symbol(self) -> char {
        match self {
            Self::SameNode => '○',
            Self::Direct => '●',
            Self::Vxlan => '◆',
            Self::OtherRoute => '?',
            Self::OnlyV4 => '4',
            Self::OnlyV6 => '6',
            Self::Rewritten => '!',
            Self::Unreached => '✗',
        }
    }

    fn meaning(self) -> &'static str {
        match self {
            Self::SameNode => "same node",
            Self::Direct => "direct route",
            Self::Vxlan => "VXLAN",
            Self::OtherRoute => "route not of Podwire",
            Self::OnlyV4 => "IPv4 only",
            Self::OnlyV6 => "IPv6 only",
            Self::Rewritten => "source address changed",
            Self::Unreached => "not reachable",
        }
    }
}

pub(super) fn draw(matrix: &Matrix) -> String {
    let symbols: Symbols<'_> = matrix
        .cells
        .iter()
        .map(|cell| ((cell.from.as_str(), cell.to.as_str()), PathSymbol::of(cell)))
        .collect();
    let mut lines = grid(matrix, &symbols).unwrap_or_else(|| by_node(matrix, &symbols));
    let mut counts: BTreeMap<PathSymbol, u64> = BTreeMap::new();
    for symbol in symbols.values() {
        *counts.entry(*symbol).or_default() += 1;
    }
    lines.push(String::new());
    let legend = counts
        .iter()
        .map(|(symbol, count)| format!("  {} {:<24}{count:>6}", painted(*symbol), symbol.meaning()));
    lines.extend(legend);
    lines.push(String::new());
    lines.push(summary(matrix));
    let problems = matrix.failures();
    lines.extend(
        problems
            .iter()
            .take(MAX_PROBLEMS)
            .map(|problem| format!("  {}", print::hanging(&print::wrap(problem, print::width() - 2), 2))),
    );
    if problems.len() > MAX_PROBLEMS {
        lines.push(format!("  … and {} more; -o json lists all", problems.len() - MAX_PROBLEMS));
    }
    lines.join("\n")
}

/// One row for each source pod, one column for each destination pod. Columns have names, or numbers if names are too wide.
/// None if numbers are too wide, too.
fn grid(matrix: &Matrix, symbols: &Symbols<'_>) -> Option<Vec<String>> {
    let longest =
        |texts: &mut dyn Iterator<Item = &String>| texts.map(|text| text.chars().count()).max().unwrap_or(0);
    let names = longest(&mut matrix.pods.iter().map(|pod| &pod.name));
    let nodes = longest(&mut matrix.pods.iter().map(|pod| &pod.node));
    let count = matrix.pods.len();
    let (digits, margin) = (count.to_string().len(), names + nodes + 4);
    let named = names.max(nodes) + 2;
    let is_named = margin + count * named <= print::width();
    let (width, margin) = if is_named { (named, margin) } else { (digits + 1, margin + digits + 2) };
    if margin + count * width > print::width() {
        return None;
    }
    let header = |texts: &mut dyn Iterator<Item = String>| {
        let texts = texts.map(|text| format!("{text:>width$}")).collect::<String>();
        format!("{:margin$}{texts}", "")
    };
    let mut lines = if is_named {
        let nodes = header(&mut matrix.pods.iter().map(|pod| pod.node.clone()));
        vec![nodes, header(&mut matrix.pods.iter().map(|pod| pod.name.clone()))]
    } else {
        vec![header(&mut (1..=count).map(|number| number.to_string()))]
    };
    for (number, MatrixPod { name: from, node }) in matrix.pods.iter().enumerate() {
        let label = if is_named { String::new() } else { format!("{:>digits$}  ", number + 1) };
        let mut line = format!("  {label}{node:<nodes$}  {from:<names$}");
        for MatrixPod { name: to, .. } in &matrix.pods {
            let symbol =
                symbols.get(&(from.as_str(), to.as_str())).map_or("·".to_owned(), |symbol| painted(*symbol));
            line.push_str(&" ".repeat(width - 1));
            line.push_str(&symbol);
        }
        lines.push(line);
    }
    Some(lines)
}

/// For each node, the number of reachable paths from and to its pods.
fn by_node(matrix: &Matrix, symbols: &Symbols<'_>) -> Vec<String> {
    let nodes: BTreeMap<&str, &str> =
        matrix.pods.iter().map(|pod| (pod.name.as_str(), pod.node.as_str())).collect();
    let mut tallies: BTreeMap<&str, [Tally; 2]> = BTreeMap::new();
    for ((from, to), symbol) in symbols {
        for (side, pod) in [from, to].into_iter().enumerate() {
            let tally = &mut tallies.entry(nodes.get(pod).copied().unwrap_or("?")).or_default()[side];
            tally.all += 1;
            tally.reachable += usize::from(symbol.is_good());
        }
    }
    let mut order: Vec<&str> = Vec::new();
    for pod in &matrix.pods {
        if order.last() != Some(&pod.node.as_str()) {
            order.push(&pod.node);
        }
    }
    let rows = order.into_iter().map(|node| {
        let pods = matrix.pods.iter().filter(|pod| pod.node == node).count();
        let [from, to] = tallies.remove(node).unwrap_or_default().map(|tally| tally.to_string());
        vec![node.to_owned(), pods.to_string(), from, to]
    });
    let table = print::table(&["NODE", "PODS", "REACHABLE FROM", "REACHABLE TO"], rows.collect());
    table.lines().map(|line| format!("  {line}")).collect()
}

/// Reachable paths of all paths.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    reachable: usize,
    all: usize,
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {}", self.reachable, self.all)
    }
}

fn painted(symbol: PathSymbol) -> String {
    let text = symbol.symbol().to_string();
    if symbol.is_good() { print::good(&text) } else { print::bad(&text) }
}

fn summary(matrix: &Matrix) -> String {
    let all = matrix.cells.len();
    if all == 0 {
        return format!("{}: no paths to test", print::count(matrix.pods.len() as u64, "pod"));
    }
    let has =
        |pick: fn(&MatrixCell) -> &Option<Reachability>| matrix.cells.iter().any(|cell| pick(cell).is_some());
    let families = match (has(|cell| &cell.v4), has(|cell| &cell.v6)) {
        (true, true) => "IPv4 and IPv6",
        (true, false) => "IPv4",
        (false, true) => "IPv6",
        (false, false) => "no family",
    };
    let good = matrix.cells.iter().filter(|cell| cell.is_ok()).count();
    let took = matrix.took.as_secs_f64() * 1000.0;
    format!("{good} of {all} pod-to-pod paths reachable over {families} ({took:.0} ms)")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn cell(from: &str, to: &str, reach: [Option<Reachability>; 2], path: PodPath) -> MatrixCell {
        let [v4, v6] = reach;
        MatrixCell { from: from.into(), to: to.into(), v4, v6, path }
    }

    fn pod(number: usize) -> MatrixPod {
        MatrixPod { name: format!("p{number}"), node: format!("n{number}") }
    }

    #[test]
    fn a_small_matrix_has_names_and_lists_problems() {
        let yes = || Some(Reachability::Yes { micros: 90 });
        let no = || Some(Reachability::No { why: None });
        let matrix = Matrix {
            pods: vec![pod(1), pod(2)],
            cells: vec![
                cell("p1", "p2", [yes(), yes()], PodPath::Vxlan),
                cell("p2", "p1", [yes(), no()], PodPath::Direct),
            ],
            took: Duration::from_millis(7),
        };
        let expected = "          n1  n2
          p1  p2
  n1  p1   ·   ◆
  n2  p2   4   ·

  ◆ VXLAN                        1
  4 IPv4 only                    1

1 of 2 pod-to-pod paths reachable over IPv4 and IPv6 (7 ms)
  p2 → p1: IPv6 timed out";
        assert_eq!(draw(&matrix), expected);
    }

    /// All paths are reachable, except for those to the last pod.
    fn large(count: usize) -> Matrix {
        let pods: Vec<MatrixPod> = (1..=count).map(pod).collect();
        let last = &pods[count - 1].name;
        let cells = pods.iter().flat_map(|MatrixPod { name: from, .. }| {
            let destinations = pods.iter().filter(move |to| to.name != *from);
            destinations.map(move |to| {
                let reach = if to.name == *last {
                    Reachability::No { why: None }
                } else {
                    Reachability::Yes { micros: 1 }
                };
                cell(from, &to.name, [Some(reach), None], PodPath::Direct)
            })
        });
        Matrix { cells: cells.collect(), pods: pods.clone(), took: Duration::ZERO }
    }

    fn widest(text: &str) -> usize {
        text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
    }

    #[test]
    fn a_large_matrix_has_numbers_and_fits_the_width() {
        let text = draw(&large(20));
        assert!(widest(&text) <= print::width(), "{text}");
        assert!(text.contains("20  n20  p20") && text.contains("361 of 380"), "{text}");
    }

    #[test]
    fn a_matrix_wider_than_the_output_is_shown_by_node() {
        let text = draw(&large(150));
        assert!(widest(&text) <= print::width(), "{text}");
        for line in [
            "  NODE  PODS  REACHABLE FROM  REACHABLE TO",
            "  n1    1     148 of 149      149 of 149",
            "  n150  1     149 of 149      0 of 149",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line:?} in:\n{text}");
        }
        assert!(text.contains("22201 of 22350") && text.contains("and 129 more"), "{text}");
    }
}
