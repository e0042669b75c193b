//! The report as text.

use std::fmt;

use comfy_table::{CellAlignment, Table};

use super::figures::{CallBreakdown, Figure};
use super::rows::{ReferenceKind, Row, Unit};
use super::{BenchReport, TargetVerdict};

/// Number of printed failures. The JSON has all of them.
const MAX_PRINTED: usize = 5;

impl fmt::Display for BenchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_circumstances(f)?;
        if !self.rows.is_empty() {
            self.write_pods(f)?;
        }
        if !self.nodes.is_empty() {
            writeln!(f, "\nMany nodes")?;
            writeln!(f, "{}", self.nodes_table())?;
        }
        if !self.times_ms.is_empty() {
            writeln!(f, "\nTimes in ms")?;
            writeln!(f, "{}", self.times_table())?;
        }
        self.write_statements(f)
    }
}

impl BenchReport {
    fn write_circumstances(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let machine = &self.machine;
        let (cpu, cores, memory) = (&machine.cpu, machine.cores, machine.memory_mib);
        writeln!(f, "{} on {cpu}, {cores} cores, {memory} MiB, Linux {}", self.date, machine.kernel)?;
        writeln!(f, "load before: {}; {}", machine.load_before, machine.versions.rustc)?;
        writeln!(f, "{} and {}", machine.versions.podwire, machine.versions.reference)
    }

    fn write_pods(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\nCompared with the reference plugins (bridge + host-local), alternating, {} pods each",
            self.scale.pods
        )?;
        let with_reference = |row: &&Row| row.compared_with == ReferenceKind::Reference;
        writeln!(f, "{}", rows_table("reference p50", self.rows.iter().filter(with_reference)))?;
        writeln!(f, "\nCompared with the kernel alone, an empty process, and Podwire itself")?;
        let without = |row: &&Row| row.compared_with != ReferenceKind::Reference;
        writeln!(f, "{}", rows_table("compared with", self.rows.iter().filter(without)))?;
        writeln!(f, "\nAn agent with {} running pods", self.scale.running_pods)?;
        writeln!(f, "{}", self.resident_table())?;
        writeln!(f, "\nBreakdown of calls through the agent, medians in ms")?;
        writeln!(f, "{}", self.shares_table())
    }

    fn nodes_table(&self) -> Table {
        let mut table = plain_table(&["case", "podwire", "compared with", "ratio", "target", "verdict"]);
        for line in &self.nodes {
            table.add_row([
                line.case.clone(),
                line.podwire_text(),
                line.beside_text(),
                line.ratio_text(),
                line.target_text(),
                line.verdict.to_string(),
            ]);
        }
        align(table)
    }

    fn times_table(&self) -> Table {
        let mut table = plain_table(&["what", "n", "min", "p50", "p90", "p99", "max"]);
        for times in &self.times_ms {
            let p = times.percentiles;
            let figures = [p.min, p.p50, p.p90, p.p99, p.max].map(|ms| format!("{ms:.2}"));
            table.add_row([times.case.clone(), p.count.to_string()].into_iter().chain(figures));
        }
        align(table)
    }

    fn resident_table(&self) -> Table {
        let mut table = plain_table(&["what", "figure", "target", "verdict"]);
        for Figure { what, value, unit, target, verdict } in &self.footprint {
            let value = value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2} {unit}"));
            table.add_row([what.clone(), value, target.to_string(), verdict.to_string()]);
        }
        align(table)
    }

    fn shares_table(&self) -> Table {
        let header =
            ["call", "all", "process", "round trip to the agent", "in the agent", "other plugin time"];
        let mut table = plain_table(&header);
        for CallBreakdown { call, all, process, trip, agent, rest } in &self.shares {
            let figures = [all, process, trip, agent, rest]
                .map(|ms| ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.2}")));
            table.add_row([call.clone()].into_iter().chain(figures));
        }
        align(table)
    }

    fn write_statements(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let binary = &self.machine.binary;
        let size = binary.bytes as f64 / 1_048_576.0;
        writeln!(f, "\n{}: {size:.2} MiB, static: {}", binary.path.display(), self.static_binary)?;
        writeln!(f, "failed calls: {} ({})", self.failures.len(), self.no_failures)?;
        write_some(f, &self.failures)?;
        writeln!(f, "not removed: {} ({})", self.left.len(), self.nothing_left)?;
        write_some(f, &self.left)?;
        for remark in &self.remarks {
            writeln!(f, "remark: {remark}")?;
        }
        let rows = self.rows.iter().map(|row| (row.verdict, row.case.as_str()));
        let footprint = self.footprint.iter().map(|figure| (figure.verdict, figure.what.as_str()));
        let nodes = self.nodes.iter().map(|line| (line.verdict, line.case.as_str()));
        let all = rows.chain(footprint).chain(nodes);
        let missed: Vec<&str> =
            all.filter(|(v, _)| *v == TargetVerdict::Missed).map(|(_, case)| case).collect();
        match missed.as_slice() {
            [] => write!(f, "all targets of speed and size are met"),
            some => write!(f, "MISSED: {}", some.join("; ")),
        }
    }
}

fn write_some(f: &mut fmt::Formatter<'_>, texts: &[String]) -> fmt::Result {
    texts.iter().take(MAX_PRINTED).try_for_each(|text| writeln!(f, "  {text}"))
}

fn rows_table<'a>(other: &str, rows: impl Iterator<Item = &'a Row>) -> Table {
    let mut table = plain_table(&["case", "podwire p50", other, "ratio", "target", "verdict"]);
    for row in rows {
        let compared_with = match row.compared_with {
            ReferenceKind::Reference => "",
            ReferenceKind::Floor => " (raw netlink)",
            ReferenceKind::SpawnedFloor => " (spawned)",
            ReferenceKind::Standalone => " (no agent)",
            ReferenceKind::FewAddresses => " (few in use)",
            ReferenceKind::AnyProcess => " (/bin/true)",
        };
        table.add_row([
            row.case.clone(),
            figure(row.podwire, row.unit),
            figure(row.other, row.unit) + compared_with,
            row.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")),
            row.target.to_string(),
            row.verdict.to_string(),
        ]);
    }
    align(table)
}

fn figure(value: Option<f64>, unit: Unit) -> String {
    match (value, unit) {
        (Some(ms), Unit::Milliseconds) => format!("{ms:.2} ms"),
        (Some(rate), Unit::PerSecond) => format!("{rate:.0}/s"),
        (None, Unit::Milliseconds | Unit::PerSecond) => "-".to_owned(),
    }
}

/// A Markdown table.
pub(crate) fn plain_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::ASCII_MARKDOWN).set_header(header);
    table
}

/// Aligns text to the left and figures to the right.
pub(crate) fn align(mut table: Table) -> Table {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
