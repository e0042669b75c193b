//! Who reaches whom, drawn.

use std::collections::BTreeMap;

use lab::{Cell, Matrix, PodPath, Reachability, Spot};

use crate::print::{self, WIDTH};

/// More complaints than this do not help anybody.
const MOST_COMPLAINTS: usize = 20;

/// Whether the picture may have colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Paint {
    Colours,
    Plain,
}

/// What a place of the picture says, worst last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Sign {
    SameNode,
    Direct,
    Vxlan,
    /// Answered, though no route of ours leads there.
    Strange,
    OnlyV4,
    OnlyV6,
    Rewritten,
    Unreached,
}

/// By the names of who asks and who is asked.
type Signs<'a> = BTreeMap<(&'a str, &'a str), Sign>;

impl Sign {
    fn of(cell: &Cell) -> Self {
        let rewritten =
            [&cell.v4, &cell.v6].iter().any(|r| matches!(r, Some(Reachability::Rewritten { .. })));
        let ok = |reach: &Option<Reachability>| reach.as_ref().is_some_and(Reachability::is_ok);
        match (cell.is_ok(), cell.way) {
            (true, PodPath::Local) => Self::SameNode,
            (true, PodPath::Direct) => Self::Direct,
            (true, PodPath::Vxlan) => Self::Vxlan,
            (true, PodPath::None) => Self::Strange,
            (false, _) if rewritten => Self::Rewritten,
            (false, _) if ok(&cell.v4) => Self::OnlyV4,
            (false, _) if ok(&cell.v6) => Self::OnlyV6,
            (false, _) => Self::Unreached,
        }
    }

    fn is_good(self) -> bool {
        matches!(self, Self::SameNode | Self::Direct | Self::Vxlan | Self::Strange)
    }

    fn mark(self) -> char {
        match self {
            Self::SameNode => '○',
            Self::Direct => '●',
            Self::Vxlan => '◆',
            Self::Strange => '?',
            Self::OnlyV4 => '4',
            Self::OnlyV6 => '6',
            Self::Rewritten => '!',
            Self::Unreached => '✗',
        }
    }

    fn meaning(self) -> &'static str {
        match self {
            Self::SameNode => "on the same node",
            Self::Direct => "direct route",
            Self::Vxlan => "VXLAN",
            Self::Strange => "by a way that is not ours",
            Self::OnlyV4 => "only IPv4",
            Self::OnlyV6 => "only IPv6",
            Self::Rewritten => "from another address than the pod's",
            Self::Unreached => "not reached",
        }
    }
}

pub(super) fn draw(matrix: &Matrix, paint: Paint) -> String {
    let signs: Signs<'_> =
        matrix.cells.iter().map(|cell| ((cell.from.as_str(), cell.to.as_str()), Sign::of(cell))).collect();
    let mut lines = grid(matrix, &signs, paint).unwrap_or_else(|| by_node(matrix, &signs));
    let mut counts: BTreeMap<Sign, u64> = BTreeMap::new();
    for sign in signs.values() {
        *counts.entry(*sign).or_default() += 1;
    }
    lines.push(String::new());
    let legend = counts
        .iter()
        .map(|(sign, count)| format!("  {} {:<24}{count:>6}", painted(*sign, paint), sign.meaning()));
    lines.extend(legend);
    lines.push(String::new());
    lines.push(verdict(matrix));
    let complaints = matrix.complaints();
    lines.extend(
        complaints
            .iter()
            .take(MOST_COMPLAINTS)
            .map(|complaint| format!("  {}", print::hang(&print::wrap(complaint, WIDTH - 2), 2))),
    );
    if complaints.len() > MOST_COMPLAINTS {
        lines.push(format!("  … and {} more; all of them: -o json", complaints.len() - MOST_COMPLAINTS));
    }
    lines.join("\n")
}

/// A row for each pod that asks, a column for each that is asked. Columns are named where that fits, else numbered; none if
/// that is too wide, too.
fn grid(matrix: &Matrix, signs: &Signs<'_>, paint: Paint) -> Option<Vec<String>> {
    let longest =
        |texts: &mut dyn Iterator<Item = &String>| texts.map(|text| text.chars().count()).max().unwrap_or(0);
    let names = longest(&mut matrix.pods.iter().map(|spot| &spot.name));
    let nodes = longest(&mut matrix.pods.iter().map(|spot| &spot.node));
    let count = matrix.pods.len();
    let (digits, margin) = (count.to_string().len(), names + nodes + 4);
    let named = names.max(nodes) + 2;
    let is_named = margin + count * named <= WIDTH;
    let (width, margin) = if is_named { (named, margin) } else { (digits + 1, margin + digits + 2) };
    if margin + count * width > WIDTH {
        return None;
    }
    let header = |texts: &mut dyn Iterator<Item = String>| {
        let texts = texts.map(|text| format!("{text:>width$}")).collect::<String>();
        format!("{:margin$}{texts}", "")
    };
    let mut lines = if is_named {
        let nodes = header(&mut matrix.pods.iter().map(|spot| spot.node.clone()));
        vec![nodes, header(&mut matrix.pods.iter().map(|spot| spot.name.clone()))]
    } else {
        vec![header(&mut (1..=count).map(|number| number.to_string()))]
    };
    for (number, Spot { name: from, node }) in matrix.pods.iter().enumerate() {
        let label = if is_named { String::new() } else { format!("{:>digits$}  ", number + 1) };
        let mut line = format!("  {label}{node:<nodes$}  {from:<names$}");
        for Spot { name: to, .. } in &matrix.pods {
            let mark = signs
                .get(&(from.as_str(), to.as_str()))
                .map_or("·".to_owned(), |sign| painted(*sign, paint));
            line.push_str(&" ".repeat(width - 1));
            line.push_str(&mark);
        }
        lines.push(line);
    }
    Some(lines)
}

/// For each node how many ways from its pods, and to them, are open.
fn by_node(matrix: &Matrix, signs: &Signs<'_>) -> Vec<String> {
    let nodes: BTreeMap<&str, &str> =
        matrix.pods.iter().map(|spot| (spot.name.as_str(), spot.node.as_str())).collect();
    let mut tallies: BTreeMap<&str, [Tally; 2]> = BTreeMap::new();
    for ((from, to), sign) in signs {
        for (side, pod) in [from, to].into_iter().enumerate() {
            let tally = &mut tallies.entry(nodes.get(pod).copied().unwrap_or("?")).or_default()[side];
            tally.all += 1;
            tally.open += usize::from(sign.is_good());
        }
    }
    let mut order: Vec<&str> = Vec::new();
    for spot in &matrix.pods {
        if order.last() != Some(&spot.node.as_str()) {
            order.push(&spot.node);
        }
    }
    let rows = order.into_iter().map(|node| {
        let pods = matrix.pods.iter().filter(|spot| spot.node == node).count();
        let [from, to] = tallies.remove(node).unwrap_or_default().map(|tally| tally.to_string());
        vec![node.to_owned(), pods.to_string(), from, to]
    });
    let table = print::table(&["NODE", "PODS", "OPEN FROM THEM", "OPEN TO THEM"], rows.collect());
    table.lines().map(|line| format!("  {line}")).collect()
}

/// How many of how many.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    open: usize,
    all: usize,
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {}", self.open, self.all)
    }
}

fn painted(sign: Sign, paint: Paint) -> String {
    let mark = sign.mark();
    match (paint, sign.is_good()) {
        (Paint::Plain, _) => mark.to_string(),
        (Paint::Colours, true) => format!("\x1b[32m{mark}\x1b[0m"),
        (Paint::Colours, false) => format!("\x1b[31m{mark}\x1b[0m"),
    }
}

fn verdict(matrix: &Matrix) -> String {
    let all = matrix.cells.len();
    if all == 0 {
        return format!("{}: nobody to ask", print::count(matrix.pods.len() as u64, "pod"));
    }
    let has = |pick: fn(&Cell) -> &Option<Reachability>| matrix.cells.iter().any(|cell| pick(cell).is_some());
    let families = match (has(|cell| &cell.v4), has(|cell| &cell.v6)) {
        (true, true) => "IPv4 and IPv6",
        (true, false) => "IPv4",
        (false, true) => "IPv6",
        (false, false) => "no family",
    };
    let good = matrix.cells.iter().filter(|cell| cell.is_ok()).count();
    let took = matrix.took.as_secs_f64() * 1000.0;
    format!("{good} of {all} ways from pod to pod are open, in {families} ({took:.0} ms)")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn cell(from: &str, to: &str, reach: [Option<Reachability>; 2], way: PodPath) -> Cell {
        let [v4, v6] = reach;
        Cell { from: from.into(), to: to.into(), v4, v6, way }
    }

    fn spot(number: usize) -> Spot {
        Spot { name: format!("p{number}"), node: format!("n{number}") }
    }

    #[test]
    fn a_small_picture_has_names_and_says_what_is_wrong() {
        let yes = || Some(Reachability::Yes { micros: 90 });
        let no = || Some(Reachability::No { why: None });
        let matrix = Matrix {
            pods: vec![spot(1), spot(2)],
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
  4 only IPv4                    1

1 of 2 ways from pod to pod are open, in IPv4 and IPv6 (7 ms)
  p2 → p1: IPv6 timed out";
        assert_eq!(draw(&matrix, Paint::Plain), expected);
        assert!(draw(&matrix, Paint::Colours).contains("\x1b[31m4\x1b[0m"));
    }

    /// Everybody reaches everybody but the last, which is not reached.
    fn large(count: usize) -> Matrix {
        let pods: Vec<Spot> = (1..=count).map(spot).collect();
        let last = &pods[count - 1].name;
        let cells = pods.iter().flat_map(|Spot { name: from, .. }| {
            let others = pods.iter().filter(move |to| to.name != *from);
            others.map(move |to| {
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
    fn a_large_picture_has_numbers_and_stays_on_the_screen() {
        let text = draw(&large(20), Paint::Plain);
        assert!(widest(&text) <= WIDTH, "{text}");
        assert!(text.contains("20  n20  p20") && text.contains("361 of 380"), "{text}");
    }

    #[test]
    fn what_is_larger_than_a_screen_is_told_node_by_node() {
        let text = draw(&large(150), Paint::Plain);
        assert!(widest(&text) <= WIDTH, "{text}");
        for line in [
            "  NODE  PODS  OPEN FROM THEM  OPEN TO THEM",
            "  n1    1     148 of 149      149 of 149",
            "  n150  1     149 of 149      0 of 149",
        ] {
            assert!(text.lines().any(|there| there == line), "{line:?} in:\n{text}");
        }
        assert!(text.contains("22201 of 22350") && text.contains("and 129 more"), "{text}");
    }
}
